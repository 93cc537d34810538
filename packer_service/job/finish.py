"""The last step of a job: the shards' records joined into the dataset's tables, and the manifest that makes it whole.

Nothing here grows with the documents or the shards: tasks join the records of a few hundred shards each, tables are
written by row groups, the dataset's id and the counts are taken as the rows pass, and the manifest is written in parts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import UInt64

from preshard.packer_service.ingest.model import PackedFor
from preshard.packer_service.job.plan import Planned
from preshard.packer_service.job.writing.records import GROUP, join_group, joined_entries, joined_rows
from preshard.packer_service.job.writing.tables import Sums, write_table
from preshard.packer_service.report.stored import write_figures
from preshard.packer_service.report.tables import table_parts
from preshard.packer_service.runtime.executors import Executor, PlainExecutor
from preshard.packer_service.runtime.progress import Progress
from preshard.packer_service.shards.store import Folder
from preshard.schemas import VERSION
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.document_ids import hash_ids
from preshard.schemas.dataset.identity import dataset_id
from preshard.schemas.dataset.manifest_parts import manifest_parts
from preshard.schemas.dataset.measures import MeasureOrder
from preshard.schemas.manifest import (
    FORMAT_VERSION,
    MANIFEST,
    MODEL,
    WORK,
    CarriedFile,
    Counts,
    ManifestHead,
    TableEntry,
)
from preshard.schemas.tables import TABLES, documents_schema

PLACE = ("piece", "copy_number", "epoch")
"""Columns that are 0 in the row that stands for a document."""


class DocumentCount:
    """Counts documents while the rows of ``documents.parquet`` and ``rejects.parquet`` pass."""

    def __init__(self) -> None:
        self._firsts, self._rows = 0, 0
        self._lost = list[UInt64[np.ndarray, "some"]]()

    def of_documents(self, parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for part in parts:
            self._rows += len(part)
            self._firsts += pc.sum(_is_first(part)).as_py() or 0
            yield part

    def of_rejects(self, parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for part in parts:
            written = part.filter(pc.equal(part["stage"], "write"))
            if len(written):
                self._lost.append(np.unique(hash_ids(written["doc_id"])))
            yield part

    def count(self, again: Callable[[], Iterable[pa.Table]]) -> int:
        """The number of documents with at least one row.

        Args:
            again: reads the rows of ``documents.parquet`` a second time: only needed where documents that have several
                rows lost some of them.
        """
        if not self._lost or self._firsts == self._rows:
            return self._firsts
        lost = np.unique(np.concatenate(self._lost))
        count, left = self._firsts, list[UInt64[np.ndarray, "some"]]()
        for part in again():
            hashes = hash_ids(part["doc_id"])
            of_lost = np.isin(hashes, lost)
            count -= int((of_lost & _is_first(part).to_numpy()).sum())
            left.append(np.unique(hashes[of_lost]))
        return count + len(np.unique(np.concatenate(left))) if left else count


def _is_first(rows: pa.Table) -> pa.ChunkedArray:
    piece, copy_number, epoch = (pc.equal(rows[name], 0) for name in PLACE)
    return pc.and_(piece, pc.and_(copy_number, epoch))


FEW_GROUPS = 4
"""Most groups of shards that this process joins itself: a second or two, where Ray takes nine to start."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finished:
    """Results of finishing, all but the manifest, which makes the folder a dataset.

    ``shards`` reads the shards' entries of the manifest, in order. ``seconds`` is what writing all shards took.
    """

    head: ManifestHead
    shards: Callable[[], Iterator[bytes]]
    seconds: float

    def write_manifest(self, folder: Folder) -> None:
        """Writes the manifest, which makes the folder a dataset."""
        with folder.writer(MANIFEST) as sink:
            for part in manifest_parts(self.head, self.shards()):
                sink.write(part)


def finish(
    folder: Folder,
    planned: Planned,
    *,
    n_shards: int,
    config: PackConfig,
    target: PackedFor,
    unread: dict[str, int],
    carried: list[CarriedFile],
    executor: Executor,
    progress: Progress,
) -> Finished:
    """Writes the tables from the shards' records, then their figures, and says what the manifest holds.

    Args:
        folder: the dataset.
        planned: what was written.
        n_shards: number of its shards.
        config: the job's configuration.
        target: what was packed for.
        unread: how many files of the source's folders are no source, by pattern.
        carried: the files of the tokenizer and the model that lie in the folder.
        executor: joins records where they are many.
        progress: hears what is done.

    Raises:
        WorkError: a record is damaged.
    """
    work, groups = folder / WORK, range(-(-n_shards // GROUP))
    seconds = _join(folder, groups, n_shards, executor, progress)
    tables, counts = _write_tables(folder, planned, groups, config)
    head = ManifestHead(
        format_version=FORMAT_VERSION,
        dataset_id=dataset_id(config, target.tokenizer, target.model, planned.rows()),
        preshard_version=VERSION,
        config=config.model_dump(mode="json"),
        tokenizer=target.tokenizer,
        model=target.model,
        sources=[file.label for file in planned.files],
        unused_columns=planned.unused_columns,
        unread_files=unread,
        filtered=dict(planned.filtered),
        phases=planned.phases(config),
        counts=counts,
        tables=tables,
        figures=write_figures(folder, config, counts.packs),
        carried=carried,
    )
    return Finished(head=head, shards=partial(joined_entries, work, groups), seconds=round(seconds, 3))


def write_carried(folder: Folder, files: Mapping[str, bytes]) -> list[CarriedFile]:
    """Writes the files of the tokenizer and the model, and removes those that an earlier run left besides."""
    for name in (folder / MODEL).names():
        if name not in files:
            folder.delete(f"{MODEL}/{name}")
    for name, content in files.items():
        folder.write(f"{MODEL}/{name}", content)
    return [
        CarriedFile(name=name, bytes=len(content), sha256=hashlib.sha256(content).hexdigest())
        for name, content in files.items()
    ]


def _join(folder: Folder, groups: Sequence[int], n_shards: int, executor: Executor, progress: Progress) -> float:
    """Joins the records of every group, and returns the seconds that writing all shards took."""
    few = len(groups) <= FEW_GROUPS
    join = partial(join_group, n_shards=n_shards, out=folder.location)
    seconds = [0.0] * len(groups)
    progress.doing("joining the records of shards into tables")
    for done, (group, of_group) in enumerate((PlainExecutor() if few else executor).run(join, groups), start=1):
        seconds[group] = of_group
        if not few:
            progress.step("joined records", min(done * GROUP, n_shards), n_shards)
    return sum(seconds)


def _write_tables(
    folder: Folder, planned: Planned, groups: Sequence[int], config: PackConfig
) -> tuple[list[TableEntry], Counts]:
    """Writes every table, and counts what passes."""
    work, order = folder / WORK, MeasureOrder.of(config, planned.n_packs)
    packs = Sums("n_tokens", "n_padding", "n_images", "n_patches")
    pieces, documents = Sums("truncated_tokens"), DocumentCount()

    def rejects() -> Iterator[pa.Table]:
        yield from planned.rejects()
        yield from joined_rows(work, groups, "rejects.parquet")

    rows: dict[str, Iterable[pa.Table]] = {
        "packs.parquet": packs.of(joined_rows(work, groups, "packs.parquet")),
        "documents.parquet": documents.of_documents(pieces.of(joined_rows(work, groups, "documents.parquet"))),
        "rejects.parquet": documents.of_rejects(rejects()),
        "measures.parquet": joined_rows(work, groups, "measures.parquet"),
    }
    schemas = TABLES | {"documents.parquet": documents_schema(config.keep_columns)}
    tables = [write_table(folder, name, rows[name], order, schemas[name]) for name in TABLES]
    packed = documents.count(lambda: table_parts(folder, "documents.parquet", ("doc_id", *PLACE)))
    left_out = planned.mixture.left_out
    counts = Counts(
        source_documents=planned.n_rows,
        documents=packed,
        pieces=pieces.rows,
        rejected=planned.n_rows - packed - left_out,
        duplicates=planned.n_duplicates,
        left_out=left_out,
        numbered=planned.n_numbered,
        packs=packs.rows,
        tokens=packs.totals["n_tokens"],
        padding_tokens=packs.totals["n_padding"],
        truncated_tokens=pieces.totals["truncated_tokens"],
        images=packs.totals["n_images"],
        patches=packs.totals["n_patches"],
    )
    return tables, counts
