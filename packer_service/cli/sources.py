"""The commands that read a source: ``pack``, ``plan`` and ``show``."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from preshard.packer_service.cli.options import (
    allowed_media,
    config_options,
    dp_option,
    executor_options,
    print_figures,
    say,
    source_options,
    with_source_options,
)
from preshard.packer_service.runtime.executors import Executor
from preshard.packer_service.runtime.local import choose_executor
from preshard.packer_service.runtime.progress import ConsoleProgress
from preshard.schemas.errors import ConfigError, TooManyRejectsError
from preshard.schemas.files.filesystem import join

if TYPE_CHECKING:
    from preshard.packer_service.ingest.media.reach import AllowedMedia
    from preshard.packer_service.ingest.source.listing import Sources
    from preshard.schemas.config import PackConfig
    from preshard.schemas.manifest import ManifestHead

TOO_MANY_REJECTS = 3
"""Exit status of ``pack`` when the dataset is whole and more rows were rejected than ``--max-rejects`` allows."""


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--out", required=True, metavar="DATASET", help="Folder of the dataset: a path or a URI.")
@click.option(
    "--max-rejects",
    type=click.FloatRange(0, 1),
    default=0.05,
    show_default=True,
    help="Largest share of rows that may be rejected; beyond it, the exit status is 3.",
)
@source_options
@config_options
@executor_options
def pack(
    sources: tuple[str, ...],
    out: str,
    max_rejects: float,
    form: str | None,
    ignore: tuple[str, ...],
    where: str | None,
    media_root: str | None,
    allow_media: tuple[str, ...],
    config_file: Path | None,
    settings: tuple[str, ...],
    executor: str,
    ray_address: str | None,
    num_cpus: int | None,
) -> int:
    """Pack SOURCE files, folders and patterns into a dataset. Continues where an earlier run stopped.

    Exit status 3: the dataset is whole, and more than --max-rejects of the rows were rejected.
    """
    config = _configured(sources, config_file, with_source_options(settings, form, ignore, where))
    media = allowed_media(media_root, allow_media)
    found = _looked_at(sources, config, media)
    # What is wrong with the sources is said before this is imported, which takes seconds.
    from preshard.packer_service.job.pack import pack as run_job

    with _tasks(executor, ray_address, num_cpus) as (tasks, progress):
        outcome = run_job(sources, out, config, tasks, progress, media=media, found=found)
    counts = outcome.manifest.counts
    if outcome.already_done:
        say(f"{out}: already packed ({counts.packs} packs, {outcome.n_shards} shards); nothing done")
    else:
        seconds = ", ".join(f"{name.removesuffix('_seconds')} {value:.1f} s" for name, value in outcome.seconds.items())
        say(
            f"{out}: {counts.documents} documents in {counts.packs} packs and {outcome.n_shards} shards, "
            f"{counts.rejected} rejected ({seconds})"
        )
    return _say_lost(out, outcome.manifest, max_rejects)


@click.command()
@click.argument("sources", nargs=-1, metavar="SOURCE...")
@click.option(
    "--lengths", type=click.Path(path_type=Path), help="Parquet file with doc_id, tokens, images; skips measuring."
)
@click.option(
    "--export", type=click.Path(path_type=Path), help="Write which documents share a pack to this Parquet file."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@dp_option
@source_options
@config_options
@executor_options
def plan(
    sources: tuple[str, ...],
    form: str | None,
    ignore: tuple[str, ...],
    where: str | None,
    media_root: str | None,
    allow_media: tuple[str, ...],
    lengths: Path | None,
    export: Path | None,
    as_json: bool,
    dp_sizes: tuple[int, ...],
    config_file: Path | None,
    settings: tuple[str, ...],
    executor: str,
    ray_address: str | None,
    num_cpus: int | None,
) -> None:
    """Measure and plan without writing a dataset: what would packing SOURCE give?"""
    config = _configured(sources, config_file, with_source_options(settings, form, ignore, where))
    if bool(sources) == (lengths is not None):
        raise ConfigError("plan: give either SOURCE files and folders or --lengths FILE.parquet")
    from preshard.packer_service.api.pack import require_documents
    from preshard.packer_service.job.preview.export import check_export
    from preshard.packer_service.job.preview.lengths import plan_lengths
    from preshard.packer_service.job.preview.source import plan_sources
    from preshard.packer_service.job.preview.tables import plan_tables

    if export is not None:
        check_export(export)
    media = allowed_media(media_root, allow_media)
    found = _looked_at(sources, config, media) if sources else None
    if lengths is not None:
        asked = {"where": config.where is not None, "duplicates": config.duplicates.is_asked}
        for name in (name for name, is_asked in asked.items() if is_asked):
            raise ConfigError(f"{name} applies to rows of SOURCE, not to --lengths: filter that table before")
        with ExitStack() as stack:
            progress = ConsoleProgress()
            stack.callback(progress.close)
            figures = plan_lengths(lengths, config, progress, dp_sizes, export=export)
        print_figures(figures, as_json)
        return
    with _tasks(executor, ray_address, num_cpus) as (tasks, progress):
        report = plan_tables(sources, config, progress, dp_sizes, export=export)
        if report is None:
            report = plan_sources(sources, config, tasks, progress, dp_sizes, media=media, found=found, export=export)
    print_figures(report, as_json)
    require_documents("plan", report.documents, report.source_documents)


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--row", metavar="N", help="The row of this number, from 1 through all files, or FILE:N.")
@click.option("--id", "doc_id", metavar="X", help="The row of this id.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@source_options
@config_options
def show(
    sources: tuple[str, ...],
    form: str | None,
    ignore: tuple[str, ...],
    where: str | None,
    media_root: str | None,
    allow_media: tuple[str, ...],
    row: str | None,
    doc_id: str | None,
    as_json: bool,
    config_file: Path | None,
    settings: tuple[str, ...],
) -> None:
    """Print one document of SOURCE as it would be packed: what carries loss, images and frames in place."""
    from preshard.packer_service.config import load_config
    from preshard.packer_service.job.preview.show import show_document
    from preshard.packer_service.report.document import print_document

    if row is not None and doc_id is not None:
        raise ConfigError("show: give either --row N or --id X")
    config = load_config(config_file, with_source_options(settings, form, ignore, where))
    document = show_document(sources, config, row=row, doc_id=doc_id, media=allowed_media(media_root, allow_media))
    if as_json:
        say(json.dumps(document.model_dump(mode="json")))
    else:
        print_document(document)


def _configured(sources: Sequence[str], config_file: Path | None, settings: list[str]) -> PackConfig:
    """The configuration of a job; of keys that are left out, that of the packed datasets among its sources."""
    from preshard.packer_service.config import load_config
    from preshard.packer_service.shards.store import require_answer

    for source in sources:
        require_answer("SOURCE", source)
    return load_config(config_file, settings, sources)


def _looked_at(sources: Sequence[str], config: PackConfig, media: AllowedMedia) -> Sources:
    from preshard.packer_service.ingest.source.listing import list_sources
    from preshard.packer_service.shards.store import require_answer

    for what, location in media.named():
        require_answer(what, location)
    return list_sources(sources, config, media)


@contextmanager
def _tasks(kind: str, ray_address: str | None, num_cpus: int | None) -> Iterator[tuple[Executor, ConsoleProgress]]:
    """What runs a job's tasks, and what hears of them; both end with the block."""
    progress = ConsoleProgress()
    with ExitStack() as stack:
        stack.callback(progress.close)
        yield stack.enter_context(choose_executor(kind, ray_address, num_cpus, progress)), progress


def _say_lost(out: str, manifest: ManifestHead, max_rejects: float) -> int:
    """Says how full the packs are and why, what was not read, and why documents were rejected.

    Returns:
        The exit status: ``TOO_MANY_REJECTS`` if more than this share of them was.

    Raises:
        PreshardError: no document was packed.
    """
    from preshard.packer_service.api.pack import check_rejects
    from preshard.packer_service.report.console import limit_line, numbered_lines, reason_lines, unread_lines
    from preshard.packer_service.report.dataset import (
        REJECTS_FILE,
        dataset_limit,
        dataset_reject_reasons,
        dataset_thinned,
        thinned_warnings,
    )
    from preshard.packer_service.shards.store import Folder
    from preshard.schemas.config import stored_config

    counts = manifest.counts
    lines = [
        *unread_lines(manifest.unused_columns, manifest.unread_files, manifest.filtered),
        *numbered_lines(counts.numbered),
    ]
    if counts.packs:
        say(f"fill {counts.tokens / (counts.tokens + counts.padding_tokens):.2%}")
    if (limit := dataset_limit(Folder(out))) is not None:
        say(limit_line(limit))
    for warning in thinned_warnings(dataset_thinned(Folder(out)), stored_config(manifest)):
        say(f"warning: {warning}")
    reasons = dataset_reject_reasons(out) if counts.rejected else []
    for line in (*lines, *reason_lines(reasons, counts.rejected, join(out, REJECTS_FILE))):
        say(line)
    try:
        check_rejects(out, manifest, max_rejects)
    except TooManyRejectsError as error:
        say(f"preshard: {error}", err=True)
        return TOO_MANY_REJECTS
    return 0
