"""The commands that read a source: ``pack``, ``plan``, ``show`` and ``suggest``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from preshard.packer_service.cli.options import (
    SourceOptions,
    device_options,
    dp_option,
    executor_options,
    hear_loops,
    json_option,
    make_devices,
    print_figures,
    say,
    say_model,
    shown_progress,
    source_options,
)
from preshard.packer_service.runtime.executors import Executor
from preshard.packer_service.runtime.progress import ConsoleProgress
from preshard.schemas.errors import ConfigError, TooManyRejectsError
from preshard.schemas.files.filesystem import join
from preshard.schemas.files.printed import several

if TYPE_CHECKING:
    from preshard.packer_service.job.resolve import ResolvedJob
    from preshard.schemas.config import PackConfig
    from preshard.schemas.manifest import ManifestHead

TOO_MANY_REJECTS = 3
"""Exit status of ``pack`` when the dataset is whole and more rows were rejected than ``--max-rejects`` allows."""

READING = "reading the sources and the model"
"""Words for what comes before the first row is measured."""

RunTasks = Callable[[ConsoleProgress], AbstractContextManager[Executor]]
sources_argument = click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")


@click.command()
@sources_argument
@click.option("--out", required=True, metavar="DATASET", help="Folder of the dataset: a path or a URI.")
@click.option(
    "--max-rejects",
    type=click.FloatRange(0, 1),
    default=0.05,
    show_default=True,
    help="Largest share of rows that may be rejected; beyond it, the exit status is 3.",
)
@click.option(
    "--allow-lost-files",
    is_flag=True,
    help="Accept damaged files of which nobody knows how many rows are lost; otherwise the exit status is 3.",
)
@source_options
@executor_options
def pack(
    sources: tuple[str, ...],
    out: str,
    max_rejects: float,
    allow_lost_files: bool,
    asked: SourceOptions,
    run_tasks: RunTasks,
) -> int:
    """Pack SOURCE files, folders and patterns into a dataset. Continues where an earlier run stopped.

    Exit status 3: the dataset is whole, and more than --max-rejects of the rows were rejected, or an unknown number
    was lost.
    """
    with shown_progress(READING) as progress:
        job = _resolved(sources, _configured(sources, asked), asked)
        from preshard.packer_service.job.pack import run

        with run_tasks(progress) as tasks:
            outcome = run(job, out, tasks, progress)
        counts = outcome.manifest.counts
        if outcome.already_done:
            whole = f"{several(counts.packs, 'pack')}, {several(outcome.n_shards, 'shard')}"
            say(f"{out}: already packed ({whole}); nothing done")
        else:
            laps = outcome.seconds.items()
            seconds = ", ".join(f"{name.removesuffix('_seconds')} {value:.1f} s" for name, value in laps)
            say(
                f"{out}: {several(counts.documents, 'document')} in {several(counts.packs, 'pack')} and "
                f"{several(outcome.n_shards, 'shard')}, {counts.rejected:,} rejected ({seconds})"
            )
        progress.doing("reading why packs are not fuller, and rows were rejected")
        return _say_lost(out, outcome.manifest, max_rejects, allow_lost_files=allow_lost_files)


@click.command()
@click.argument("sources", nargs=-1, metavar="[SOURCE]...")
@click.option(
    "--lengths", type=click.Path(path_type=Path), help="Parquet file with doc_id, tokens, images; skips measuring."
)
@click.option(
    "--export", type=click.Path(path_type=Path), help="Write which documents share a pack to this Parquet file."
)
@json_option
@dp_option
@source_options
@executor_options
def plan(
    sources: tuple[str, ...],
    lengths: Path | None,
    export: Path | None,
    as_json: bool,
    dp_sizes: tuple[int, ...],
    asked: SourceOptions,
    run_tasks: RunTasks,
) -> None:
    """Measure and plan without writing a dataset. Says what packing SOURCE would give."""
    config = _configured(sources, asked)
    if bool(sources) == (lengths is not None):
        raise ConfigError("plan: give either SOURCE files and folders or --lengths FILE.parquet")
    from preshard.packer_service.job.preview.export import check_export
    from preshard.packer_service.job.preview.lengths import plan_lengths

    if export is not None:
        check_export(export)
    if lengths is not None:
        given = {"where": config.where is not None, "duplicates": config.duplicates.is_asked}
        for name in (name for name, is_asked in given.items() if is_asked):
            raise ConfigError(f"{name} applies to rows of SOURCE, not to --lengths: filter that table before")
        with shown_progress("reading the lengths") as progress, hear_loops(progress):
            figures = plan_lengths(lengths, config, progress, dp_sizes, export=export)
        print_figures(figures, as_json)
        return
    with shown_progress(READING) as progress:
        from preshard.packer_service.api.pack import require_documents
        from preshard.packer_service.job.preview.source import plan_sources, plan_tables

        job = _resolved(sources, config, asked)
        with run_tasks(progress) as tasks:
            report = plan_tables(job, progress, dp_sizes, export=export)
            if report is None:
                report = plan_sources(job, tasks, progress, dp_sizes, export=export)
    print_figures(report, as_json)
    require_documents("plan", report.documents, report.source_documents)


@click.command()
@sources_argument
@click.option("--row", metavar="N", help="The row of this number, from 1 through all files, or FILE:N.")
@click.option("--id", "doc_id", metavar="X", help="The row of this id.")
@json_option
@source_options
def show(sources: tuple[str, ...], row: str | None, doc_id: str | None, as_json: bool, asked: SourceOptions) -> None:
    """Print one document of SOURCE as it would be packed. Marks what carries loss, with images and frames in place."""
    if row is not None and doc_id is not None:
        raise ConfigError("show: give either --row N or --id X")
    with shown_progress("reading the row and the model"):
        from preshard.packer_service.job.preview.show import show_document
        from preshard.packer_service.report.document import print_document

        document = show_document(sources, asked.config(), row=row, doc_id=doc_id, media=asked.media(sources))
    if as_json:
        say_model(document)
    else:
        print_document(document)


@click.command()
@sources_argument
@device_options
@click.option(
    "--rows",
    type=click.IntRange(1, 100_000),
    default=256,
    show_default=True,
    help="Rows to draw from SOURCE at most.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the configuration to this file instead of printing it.",
)
@source_options
def suggest(
    sources: tuple[str, ...],
    gpus: int,
    gpu: str,
    assumed: tuple[str, ...],
    rows: int,
    out: Path | None,
    asked: SourceOptions,
) -> None:
    """Propose a configuration file for SOURCE. A sample of its rows says what each choice would give.

    Keys that --config and --set give stay as they are.
    """
    with shown_progress(READING) as progress:
        from preshard.packer_service.report.advice.question import make_question

        question = make_question(make_devices(assumed, gpus=gpus, gpu=gpu))
        config = asked.config()
        if config.model is None:
            raise ConfigError("suggest: give --model DIR, the folder of the model that will train")
        from preshard.packer_service.job.preview.suggest import suggest as suggest_for

        with hear_loops(progress):
            found = suggest_for(sources, config, question, progress, rows=rows, media=asked.media(sources))
    if out is None:
        say(found.removesuffix("\n"))
        return
    try:
        out.write_text(found, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written ({error.strerror or error})") from None
    say(f"{out}: written; pack with --config {out}")


def _configured(sources: Sequence[str], asked: SourceOptions) -> PackConfig:
    """The configuration of a job, whose sources answer."""
    from preshard.packer_service.shards.store import require_answer

    for source in sources:
        require_answer("SOURCE", source)
    return asked.config(sources)


def _resolved(sources: Sequence[str], config: PackConfig, asked: SourceOptions) -> ResolvedJob:
    from preshard.packer_service.job.sources import find_sources

    media = asked.media(sources)
    found = find_sources(sources, config, media)
    # What is wrong with the sources is said before this is imported, which takes seconds.
    from preshard.packer_service.job.resolve import resolve

    return resolve(found, config, media)


def _say_lost(out: str, manifest: ManifestHead, max_rejects: float, *, allow_lost_files: bool) -> int:
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
        holding_line,
        thinned_warnings,
    )
    from preshard.packer_service.shards.store import Folder
    from preshard.schemas.dataset.manifest_parts import stored_config

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
    if counts.rejected and (line := holding_line(out)) is not None:
        lines.append(line)
    for line in (*lines, *reason_lines(reasons, counts.rejected, join(out, REJECTS_FILE))):
        say(line)
    try:
        check_rejects(out, manifest, max_rejects, allow_lost_files=allow_lost_files)
    except TooManyRejectsError as error:
        say(f"preshard: {error}", err=True)
        return TOO_MANY_REJECTS
    return 0
