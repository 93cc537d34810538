"""Measured fragments to one table of documents, and from there to a plan. Columns of integers, no content."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from packer_service.ingest.source.files import Fragment, RowReference, SourceFile
from packer_service.job.documents import PlannedDocument
from packer_service.job.duplicates import repeated
from packer_service.job.measure import MEASURED
from packer_service.job.write import ShardTask
from packer_service.plan.make import plan_documents
from packer_service.plan.plan import Plan
from packer_service.shards.write import shard_name
from schemas.config import PackConfig
from schemas.tables import REJECTS

LOCATED = MEASURED.remove(0).append(pa.field("file", pa.int64())).append(pa.field("line", pa.int64()))
DOCUMENT_COLUMNS = [name for name in LOCATED.names if name not in ("stage", "code", "message")]


@dataclass(frozen=True, kw_only=True, slots=True)
class Survey:
    """Everything that measuring found, in source order.

    ``documents`` has :data:`DOCUMENT_COLUMNS`: of ``measure.MEASURED``, every ``doc_id`` filled in, and ``file`` (index
    into ``files``) and ``line`` (row in the file from 1). The integers of a column are as wide as they need to be.
    ``rejects`` has the columns of ``schemas.tables.REJECTS``, duplicates among them.
    """

    files: list[SourceFile]
    documents: pa.Table
    rejects: pa.Table
    n_rows: int


def survey(fragments: Sequence[Fragment], measured: Iterable[tuple[pa.Table, int]]) -> Survey:
    """Joins measured fragments: numbers the rows, names those without an id, and rejects ids that came before."""
    files = list(dict.fromkeys(fragment.file for fragment in fragments))
    number = {file: i for i, file in enumerate(files)}
    tables, lines_before = list[pa.Table](), dict.fromkeys(files, 0)
    for fragment, (table, n_lines) in zip(fragments, measured, strict=True):
        tables.append(_locate(table, number[fragment.file], fragment.file.label, lines_before[fragment.file]))
        lines_before[fragment.file] += n_lines
    # "permissive": a column is as wide as its widest fragment
    return _split(files, pa.concat_tables(tables or [LOCATED.empty_table()], promote_options="permissive"))


def _locate(table: pa.Table, file: int, label: str, lines_before: int) -> pa.Table:
    """Adds where each row is from, and an id to those without. As narrow as the values allow: all of them are kept."""
    line = pc.add(table["row"], lines_before + 1)
    location = pc.binary_join_element_wise(label, pc.cast(line, pa.string()), ":")
    columns = {
        **{name: table[name] for name in MEASURED.names},
        "doc_id": pc.coalesce(table["doc_id"], location),
        "file": pa.array(np.full(len(table), file)),
        "line": line,
    }
    narrow = {name: _narrow(columns[name]) for name in LOCATED.names}
    return pa.table(narrow | {"source": columns["source"].dictionary_encode()})


def _narrow(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The same values in the smallest integers that hold them; nothing but nulls takes no memory at all."""
    if column.null_count == len(column):
        return pa.nulls(len(column))
    if not pa.types.is_integer(column.type):
        return column
    least, most = pc.min_max(column).as_py().values()
    widths = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    return column.cast(next(w for w in widths if -(1 << w.bit_width - 1) <= least and most < 1 << w.bit_width - 1))


def _split(files: list[SourceFile], table: pa.Table) -> Survey:
    first_piece = pc.fill_null(pc.equal(table["piece"], 0), True).to_numpy()
    n_rows = int(first_piece.sum())
    again = repeated(table["doc_id"].filter(pa.array(first_piece)))
    duplicate = np.repeat(again, np.diff(np.append(np.flatnonzero(first_piece), len(table))))
    lost = duplicate | pc.is_valid(table["code"]).to_numpy()
    rejects = table.filter(pa.array(lost & first_piece)).cast(LOCATED)
    locations = [
        f"{files[file].label}:{line}"
        for file, line in zip(rejects["file"].to_pylist(), rejects["line"].to_pylist(), strict=True)
    ]
    documents = table.select(DOCUMENT_COLUMNS)
    del table
    return Survey(
        files=files,
        documents=(documents.filter(pa.array(~lost)) if lost.any() else documents)
        .unify_dictionaries()
        .combine_chunks(),
        rejects=_rejects(rejects, duplicate[lost & first_piece], locations),
        n_rows=n_rows,
    )


def _rejects(table: pa.Table, is_duplicate: np.ndarray, locations: list[str]) -> pa.Table:
    chosen = pa.array(is_duplicate)
    columns = {
        "doc_id": table["doc_id"],
        "source": table["source"],
        "location": pa.array(locations, pa.string()),
        "stage": pc.if_else(chosen, "plan", table["stage"]),
        "code": pc.if_else(chosen, "duplicate_id", table["code"]),
        "message": pc.if_else(chosen, "an earlier row has the same id", table["message"]),
    }
    return pa.table(columns).cast(REJECTS)


def plan_measured(documents: pa.Table, config: PackConfig) -> Plan:
    """The plan of measured documents, by their columns ``tokens``, ``images`` and ``area``."""
    tokens, images, areas = (documents[name].to_numpy() for name in ("tokens", "images", "area"))
    return plan_documents(tokens=tokens, images=images, areas=areas, config=config)


def shard_ranges(plan: Plan, packs_per_shard: int) -> list[tuple[str, int, int]]:
    """Name, first pack and end of the packs of every shard of a plan."""
    firsts = range(0, plan.n_packs, packs_per_shard)
    return [(shard_name(i), at, min(at + packs_per_shard, plan.n_packs)) for i, at in enumerate(firsts)]


def shard_task(found: Survey, plan: Plan, name: str, first_pack: int, end_pack: int) -> ShardTask:
    """The references of one shard."""
    edges = plan.pack_edges
    rows = slice(int(edges[first_pack]), int(edges[end_pack]))
    columns = found.documents.take(pa.array(plan.document[rows])).to_pydict()
    documents = [
        PlannedDocument(
            file=found.files[columns["file"][i]],
            reference=RowReference(offset=columns["offset"][i], size=columns["size"][i]),
            location=f"{found.files[columns['file'][i]].label}:{columns['line'][i]}",
            doc_id=columns["doc_id"][i],
            source=columns["source"][i],
            piece=columns["piece"][i],
            start=start,
            length=length,
            aligned_length=aligned_length,
            truncated=columns["truncated"][i],
        )
        for i, (start, length, aligned_length) in enumerate(
            zip(
                plan.start[rows].tolist(),
                plan.length[rows].tolist(),
                plan.aligned_length[rows].tolist(),
                strict=True,
            )
        )
    ]
    cuts = edges[first_pack : end_pack + 1] - edges[first_pack]
    packs = [documents[a:b] for a, b in zip(cuts[:-1].tolist(), cuts[1:].tolist(), strict=True)]
    return ShardTask(name=name, first_pack=first_pack, packs=packs)


@dataclass(frozen=True, kw_only=True, slots=True)
class ShardTasks(Sequence[ShardTask]):
    """The tasks of shards, each made when it is asked for: all at once would hold an object a document."""

    found: Survey
    plan: Plan
    ranges: list[tuple[str, int, int]]

    def __len__(self) -> int:
        return len(self.ranges)

    @overload
    def __getitem__(self, index: int) -> ShardTask: ...

    @overload
    def __getitem__(self, index: slice) -> ShardTasks: ...

    def __getitem__(self, index: int | slice) -> ShardTask | ShardTasks:
        if isinstance(index, slice):
            return ShardTasks(found=self.found, plan=self.plan, ranges=self.ranges[index])
        return shard_task(self.found, self.plan, *self.ranges[index])
