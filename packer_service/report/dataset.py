"""``preshard report``: how full and how balanced a dataset is, what was lost and why, and what it warns of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TypeVar

import numpy as np

from preshard.packer_service.plan.records import Figures, FillLimit, Mixture, SourceShare, Thinned
from preshard.packer_service.report.fill import encoder_stragglers, straggler_ratios
from preshard.packer_service.report.records import DatasetReport, RejectReason, SourceTotals, StoredFigures
from preshard.packer_service.report.run import JobFacts, read_run
from preshard.packer_service.report.stored import read_figures
from preshard.packer_service.report.tables import read_numbers, table_parts
from preshard.packer_service.shards.store import Folder, require_answer
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.annotations import ANNOTATIONS, PLACES, open_annotations
from preshard.schemas.dataset.manifest_parts import stored_config
from preshard.schemas.dataset.read_manifest import read_manifest_head
from preshard.schemas.dataset.table_file import TableFile
from preshard.schemas.errors import ConfigError
from preshard.schemas.files.filesystem import join
from preshard.schemas.manifest import LARGEST_MANIFEST, MANIFEST, ManifestHead, ModelEntry, TokenizerEntry, encoder_of

T = TypeVar("T", bound=Figures)

SIZES = ("too_long", "too_many_images", "too_many_patches")
"""Codes of documents that no pack can hold."""

REJECTS_FILE = "rejects.parquet"


def open_dataset(location: str) -> tuple[Folder, ManifestHead]:
    """A dataset's folder and manifest, but for the manifest's list of shards.

    Raises:
        ConfigError: there is no such folder, or it is not a dataset.
        ManifestInvalid: its manifest cannot be read.
    """
    require_answer("DATASET", location)
    folder = Folder(location)
    folder.require("DATASET")
    if not folder.is_file(MANIFEST):
        inside = (name for name, is_folder in folder.entries().items() if is_folder)
        dataset = next((name for name in inside if (folder / name).is_file(MANIFEST)), None)
        why = "it is not a dataset, or packing it has not finished"
        raise ConfigError(
            f"DATASET {location}: has no {MANIFEST}: "
            + (why if dataset is None else f"give a dataset inside of it, such as {join(location, dataset)}")
        )
    with folder.open(MANIFEST, LARGEST_MANIFEST) as file:
        return folder, read_manifest_head(file, MANIFEST)


def report_dataset(location: str, dp_sizes: Sequence[int] = ()) -> DatasetReport:
    """Every figure of the report, described in ``docs/format.md``.

    Straggler ratios are given for ``dp_sizes``, by default for the powers of two that divide the window.

    Raises:
        ConfigError: there is no such folder, or it is not a dataset.
        PlanError: a data-parallel size does not divide the window.
        FormatError: the dataset is broken.
    """
    folder, manifest = open_dataset(location)
    return report_figures(folder, manifest, read_figures(folder, manifest), dp_sizes)


def report_figures(
    folder: Folder, manifest: ManifestHead, figures: StoredFigures, dp_sizes: Sequence[int] = ()
) -> DatasetReport:
    """The report of a dataset whose figures are read."""
    config, counts, run = stored_config(manifest), manifest.counts, read_run(folder)
    seconds = run.seconds
    straggler = figures.straggler_ratio
    if dp_sizes:
        [cost] = read_numbers(folder, "packs.parquet", "cost")
        straggler = straggler_ratios(cost, config, dp_sizes)
    known = dict(figures) | dict(mixture_of(run, figures.sources, config, counts.left_out))
    known |= {"straggler_ratio": straggler, "limit": run.limit}
    [loads] = read_numbers(folder, "packs.parquet", "load") if counts.images else [np.zeros(0, np.int64)]
    known["encoder_straggler"] = encoder_stragglers(loads, config, dp_sizes)
    return DatasetReport(
        **{name: known[name] for name in known if name in DatasetReport.model_fields and name != "documents"},
        dataset_id=manifest.dataset_id,
        annotations=joined_columns(folder, manifest),
        source_documents=counts.source_documents,
        documents=counts.documents,
        rejected=counts.rejected,
        numbered=counts.numbered,
        unused_columns=manifest.unused_columns,
        unread_files=manifest.unread_files,
        filtered=manifest.filtered,
        warnings=[*warnings_of(manifest, config, run.thinned), *([] if run.fault is None else [run.fault])],
        shards=-(-counts.packs // config.packs_per_shard),
        n_images=counts.images,
        plan_seconds=seconds.get("plan_seconds", 0.0),
        seconds=seconds,
        attempts=len(run.attempts),
        measured_per_second=_rate(counts.source_documents, seconds.get("measure_task_seconds", 0.0)),
    )


def joined_columns(folder: Folder, manifest: ManifestHead) -> dict[str, int]:
    """The columns that were joined to a dataset, each with the number of its values, by what the file's footer says.

    Raises:
        AnnotationsInvalid: they are of another dataset, or damaged.
    """
    if not folder.is_file(ANNOTATIONS):
        return {}
    with folder.open(ANNOTATIONS) as opened:
        file = open_annotations(opened, manifest)
        return {name: _count_values(file, name) for name in file.schema.names[len(PLACES) :]}


def _count_values(file: TableFile, name: str) -> int:
    """Values of a column that are not null, by the footer, or where it does not say it by the column itself."""
    groups = [file.metadata.row_group(number) for number in range(file.n_groups)]
    found = [group.column(file.schema.names.index(name)).statistics for group in groups]
    if any(each is None or not each.has_null_count for each in found):
        return sum(len(part) - part.column(0).null_count for part in file.parts(columns=[name]))
    return file.n_rows - sum(each.null_count for each in found)


def dataset_rejects(location: str) -> dict[str, int]:
    """Rejected documents of a dataset by code; raises as :func:`dataset_reject_reasons`."""
    return read_figures(*open_dataset(location)).rejects


def dataset_reject_reasons(location: str) -> list[RejectReason]:
    """The most frequent reasons of a dataset's rejects.

    Raises:
        ConfigError: there is no such folder, or it is not a dataset.
        FormatError: the dataset is broken.
    """
    return read_figures(*open_dataset(location)).reject_reasons


_HOLDS = re.compile(r"has (\d+) \w+, more than (\w+) \d+; \w+=(\d+) holds it")


def holding_line(location: str) -> str | None:
    """The least values of limits that would have held every document that was rejected for its size; None without any.

    Raises:
        TableInvalid: the table of rejects is not one.
        OSError: it cannot be read.
    """
    least = dict[str, tuple[int, int]]()
    parts = table_parts(Folder(location), REJECTS_FILE, ["code", "message"])
    for message in (row["message"] for part in parts for row in part.to_pylist() if row["code"] in SIZES):
        if (found := _HOLDS.match(message)) is not None:
            number, most = least.get(found.group(2), (0, 0))
            least[found.group(2)] = number + 1, max(most, int(found.group(3)))
    if not least:
        return None
    each = ", ".join(
        f"--set {name}={most} holds {'it' if number == 1 else f'all {number:,}'}"
        for name, (number, most) in sorted(least.items())
    )
    return f"too large for a pack: {each}; --set oversize=truncate or oversize=split keeps parts"


def dataset_limit(folder: Folder) -> FillLimit | None:
    """The limit that keeps the packs of a dataset from being fuller."""
    return read_run(folder).limit


def dataset_thinned(folder: Folder) -> Thinned | None:
    """Videos of a dataset that have fewer frames than were asked for."""
    return read_run(folder).thinned


def mixture_of(run: JobFacts, sources: Sequence[SourceTotals], config: PackConfig, left_out: int) -> Mixture:
    """The mixture as the job recorded it; without a record, as far as it can be seen in the documents.

    Args:
        run: what the job wrote of itself.
        sources: what became of the documents of each.
        config: the dataset's configuration.
        left_out: documents that the mixture leaves out.
    """
    if run.mixture is not None:
        return run.mixture
    total, weights = sum(each.tokens for each in sources), dict(config.mixture)
    shares = {
        each.source: SourceShare(
            weight=weights.get(each.source, 1.0),
            documents=each.pieces,
            tokens=each.tokens,
            asked=None,
            share=each.tokens / total,
            loss_share=None,
        )
        for each in sources
        if each.pieces
    }
    return Mixture(left_out=left_out, shares=shares, phases=[])


def _rate(documents: int, seconds: float) -> float:
    """Documents per second of one task; 0 when the time is not known."""
    return round(documents / seconds, 1) if seconds else 0.0


PADDED_VOCABULARY = 1.03
"""A model's vocabulary is padded to a round number: Qwen3-8B's has 151,936 rows for 151,669 tokens, 1.002 times as
many. One that is larger than this belongs to another tokenizer."""


def warnings_of(manifest: ManifestHead, config: PackConfig, thinned: Thinned | None = None) -> list[str]:
    """Warnings of a dataset's report: dimensions of another model than its tokens are for, and thinned videos."""
    warnings = thinned_warnings(thinned, config)
    if found := cost_contradiction(manifest.tokenizer, manifest.model, config):
        warnings.insert(0, f"{found}; set cost.* to the dimensions of the model that will train")
    return warnings


def thinned_warnings(thinned: Thinned | None, config: PackConfig) -> list[str]:
    """Says how far apart the frames of long videos are; nothing where every video has the frames that it should."""
    if thinned is None or not thinned.documents:
        return []
    number = thinned.documents
    return [
        f"video.max_frames {config.video.max_frames} thins the videos of {number:,} "
        f"{'document' if number == 1 else 'documents'}, down to one frame in {thinned.seconds:.3g} s where "
        f"video.fps asks for {config.video.fps:g} a second; raise video.max_frames, or cut long videos into clips with "
        "start and end"
    ]


def cost_contradiction(tokenizer: TokenizerEntry, model: ModelEntry | None, config: PackConfig) -> str | None:
    """The first dimension that another model has."""
    cost = config.cost
    encoder = encoder_of(model.settings) if model else None
    if encoder and encoder.row_outputs % cost.hidden_size:
        return (
            f"cost settings assume hidden_size {cost.hidden_size:,}, the image features of "
            f"{model.model_type if model else ''} have {encoder.row_outputs:,} numbers"
        )
    of_images = model is None and tokenizer.image_id == tokenizer.vocab_size - 1
    tokens = tokenizer.vocab_size - of_images
    if not tokens <= cost.vocab_size <= PADDED_VOCABULARY * tokens:
        return (
            f"cost settings assume vocab_size {cost.vocab_size:,}, the tokenizer {tokenizer.name} has {tokens:,} tokens"
        )
    return None
