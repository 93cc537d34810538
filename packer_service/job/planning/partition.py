"""One partition of all documents, planned by itself: a range of hashes, so a random sample of the documents.

What two documents of one partition have to do with each other is settled here: rows of one id meet, and so do ``x`` and
``x#2``, since partitions are ranges of the hash of the id without its number. They follow from the source and the
configuration alone, never from the cluster.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from duckdb import DuckDBPyConnection

from preshard.packer_service.job.plan import PLACES, PLAN_FOLDER, SegmentFacts, segment_name, write_segment
from preshard.packer_service.job.planning.copies import COPIES_FILE, FOUND
from preshard.packer_service.job.planning.duplicates import SETTLED, settle_rows
from preshard.packer_service.job.planning.runs import HASH, LOCATED, RUNS, querying
from preshard.packer_service.plan.limits import fill_limit
from preshard.packer_service.plan.make import Plan, plan_documents
from preshard.packer_service.plan.mixture import Taken, take_mixture
from preshard.packer_service.plan.order import whole_groups
from preshard.packer_service.runtime.executors import TaskCounts
from preshard.packer_service.runtime.scratch import give_back_memory
from preshard.packer_service.shards.store import Folder
from preshard.packer_service.tables.rows import BATCH_ROWS, KeyRange, read_rows, sort_parts
from preshard.schemas.config import PackConfig
from preshard.schemas.encode import encode_table
from preshard.schemas.errors import DUPLICATES
from preshard.schemas.manifest import LayerMasks
from preshard.schemas.tables import REJECTS

PARTITION_ROWS = 1_000_000
"""Documents of a partition, each as often as it is taken: of far fewer, packs are less full and steps less even."""

SIZES = ("tokens", "images", "patches", "load", "area")
REFERENCE = (
    *("doc_id", "source_number", "file", "line", "offset", "size", "piece", "truncated", "images", "patches"),
    "duplicate_of",
)
"""Columns of a document that its rows of the plan have."""

IS_FIRST = "coalesce(piece, 0) = 0"
"""Condition that selects, of a document's rows, the one of its first piece; a rejected document has a single row."""

SHARED = f"""
    SELECT DISTINCT {HASH} FROM (
        SELECT {HASH}, coalesce(own_hash, {HASH}) AS id_hash FROM measured WHERE {IS_FIRST}
        GROUP BY ALL HAVING count(*) > 1
    )
"""
"""The stems of which an id occurs several times; of a source whose ids are unique, none."""

SAME_ID = f"""
    SELECT file, line, doc_id, content, rendered, is_stored FROM measured SEMI JOIN shared USING ({HASH})
    WHERE {IS_FIRST} ORDER BY file, line
"""

DOCUMENTS = f"""
    SELECT coalesce(new_hash, own_hash, {HASH}) AS id_hash, coalesce(new_id, doc_id) AS doc_id,
        source_number, file, line, "offset", size, piece, {", ".join(SIZES)}, truncated, loss_weight,
        original AS duplicate_of
    FROM measured JOIN sources USING (source) LEFT JOIN settled USING (file, line)
        LEFT JOIN copies USING (file, line)
    WHERE code IS NULL AND equal IS NULL AND is_dropped IS NOT TRUE
"""
CANONICAL = ("id_hash", "doc_id", "piece", "file", "line")
"""The order of documents, so that what is made of them does not depend on the order of the source."""

_SAID = """
    WHEN 'duplicate_text' THEN 'has the text of' WHEN 'near_duplicate' THEN 'has nearly the text of'
    ELSE 'shows the images of'
"""

REJECTED = f"""
    SELECT coalesce(new_id, doc_id) AS doc_id, source, label || ':' || line AS location,
        coalesce(stage, 'plan') AS stage,
        CASE WHEN equal IS NULL THEN coalesce(code, copy_code) ELSE 'duplicate_row' END AS code,
        coalesce(equal, message, CASE copy_code {_SAID} END || ' the row ''' || original || '''') AS message
    FROM measured LEFT JOIN labels USING (file) LEFT JOIN settled USING (file, line)
        LEFT JOIN copies USING (file, line)
    WHERE {IS_FIRST} AND (code IS NOT NULL OR equal IS NOT NULL OR is_dropped) ORDER BY file, line
"""


class Partition(NamedTuple):
    """One of several equal ranges of the 64-bit hash."""

    number: int
    of: int

    @property
    def low(self) -> int:
        return self.number * 2**64 // self.of

    @property
    def high(self) -> int:
        return (self.number + 1) * 2**64 // self.of


@dataclass(frozen=True, kw_only=True, slots=True)
class RunsHeld:
    """Contents of the runs, as every partition has to know them.

    Attributes:
        runs: their names.
        n_rows: rows of all of them.
        sources: names of all sources, sorted.
        labels: labels of the source's files, by which rejects say where they are; none where nobody asks that.
        has_rejects: whether any row is rejected.
        has_copies: whether documents were compared with each other.
    """

    runs: Sequence[str]
    n_rows: int
    sources: Sequence[str]
    labels: Sequence[str]
    has_rejects: bool
    has_copies: bool = False


def count_partitions(by_source: Mapping[str, int], config: PackConfig, rows_each: int) -> int:
    """Number of partitions.

    Args:
        by_source: rows of each source that can be packed.
        config: its mixture and epochs say how often each is taken.
        rows_each: rows of a partition.
    """
    weights = dict(config.mixture)
    taken = math.fsum(count * weights.get(name, 1.0) for name, count in sorted(by_source.items())) * config.epochs
    return max(1, math.ceil(taken / rows_each))


def plan_partition(
    part: Partition,
    measured: RunsHeld,
    config: PackConfig,
    work: str,
    *,
    unique: bool = True,
    layers: LayerMasks | None = None,
) -> TaskCounts:
    """Runs in a task: plans the documents of a partition, and keeps the plan as a segment.

    Args:
        part: the partition.
        measured: what the runs hold.
        config: the configuration of the job.
        work: the work folder.
        unique: whether rows of one id get numbers, and equal ones are rejected.
        layers: the model's, where some have a window.
    """
    folder = Folder(work)
    with querying(rows=measured.n_rows) as tables:
        scan = _Scan(tables, folder, measured, part)
        settled, n_numbered = scan.settle() if unique else (SETTLED.empty_table(), 0)
        tables.register("settled", settled)
        has_copies = scan.read_copies()
        rejects = scan.rejects() if measured.has_rejects or len(settled) or has_copies else REJECTS.empty_table()
        parts = scan.documents()
    give_back_memory()  # the query's, before documents are sorted
    documents = sort_parts(parts, CANONICAL)
    give_back_memory()
    columns = {name: documents[name].to_numpy() for name in ("id_hash", "source_number", "piece", *SIZES)}
    if not documents["loss_weight"].null_count:
        columns["loss_weight"] = documents["loss_weight"].to_numpy()
    taken, totals = take_mixture(columns, config, measured.sources)
    n_rows = int((columns["piece"] == 0).sum()) + len(rejects)
    n_documents = _count_ids(columns["id_hash"][taken.document], taken)
    columns = taken.columns_of({name: columns[name] for name in ("source_number", *SIZES)})
    documents = documents.select(REFERENCE)
    give_back_memory()
    plan = plan_documents(columns, config, part.number, layers)
    give_back_memory()
    stages = taken.stage[plan.document[plan.pack_edges[:-1]]]  # of each pack
    groups = whole_groups(stages, config.order.window)
    facts = SegmentFacts(
        n_rows=n_rows,
        n_documents=n_documents,
        n_rejected=len(rejects),
        n_duplicates=pc.sum(pc.is_in(rejects["code"], pa.array(DUPLICATES))).as_py() or 0,
        n_numbered=n_numbered,
        n_placed=plan.n_documents,
        groups=groups.tolist(),
        left=plan.n_packs - int(groups.sum()),
        totals=tuple(totals),
        tokens=int(plan.length.sum()),
        aligned=int(plan.aligned_length.sum()),
        images=int(columns["images"].sum()),
        patches=int(columns["patches"].sum()),
        truncated=_truncated(documents, taken, measured.sources),
        limit=None if part.number else fill_limit(columns, config, plan.n_packs),
    )
    del columns
    name, to = segment_name(part.number), folder / PLAN_FOLDER
    to.write(f"{name}-rejects.parquet", encode_table(rejects))
    write_segment(to, name, _plan_rows(documents, taken, plan), plan.cost, plan.vision, facts)
    counts = TaskCounts(amounts={"documents": plan.n_documents, "packs": plan.n_packs})
    del documents, taken, plan
    give_back_memory()  # the next partition may be planned in the same process
    return counts


class _Scan:
    """The rows of a partition, queried through a connection."""

    def __init__(self, tables: DuckDBPyConnection, work: Folder, measured: RunsHeld, part: Partition) -> None:
        self._tables, self._work, self._runs, self._measured = tables, work, work / RUNS, measured
        self._within = KeyRange(HASH, part.low, part.high)
        names, labels = (pa.array(each, pa.string()) for each in (measured.sources, measured.labels))
        tables.register("sources", pa.table({"source": names, "source_number": np.arange(len(names))}))
        tables.register("labels", pa.table({"file": np.arange(len(labels)), "label": labels}))

    def _read(self, *columns: str) -> None:
        """Names the rows ``measured`` for the next query."""
        schema = pa.schema([LOCATED.field(name) for name in columns])
        rows = read_rows(self._runs, self._measured.runs, self._within, columns)
        self._tables.register("measured", pa.RecordBatchReader.from_batches(schema, rows))

    def read_copies(self) -> bool:
        """Names the documents that equal others ``copies``, and says whether there are any."""
        names = [COPIES_FILE] if self._measured.has_copies else []
        columns = [name for name in FOUND.names if name != HASH]
        found = pa.Table.from_batches(
            read_rows(self._work, names, self._within, columns), pa.schema([FOUND.field(name) for name in columns])
        )
        self._tables.register("copies", found)
        return len(found) > 0

    def settle(self) -> tuple[pa.Table, int]:
        """Settles rows whose id others have as well. Returns a table, and how many of them get a number."""
        self._read(HASH, "own_hash", "piece")
        shared = self._tables.sql(SHARED).to_arrow_table()
        if not len(shared):
            return SETTLED.empty_table(), 0
        self._tables.register("shared", shared)
        self._read(HASH, "piece", "file", "line", "doc_id", "content", "rendered", "is_stored")
        rows = self._tables.sql(SAME_ID).to_arrow_table().to_pylist()
        return settle_rows(rows, self._measured.labels)

    def rejects(self) -> pa.Table:
        """Rejected rows, equal ones among them, in source order."""
        self._read("file", "line", "piece", "doc_id", "source", "stage", "code", "message")
        return self._tables.sql(REJECTED).to_arrow_table().cast(REJECTS)

    def documents(self) -> list[pa.Table]:
        """The documents in parts and any order, in integers that are as narrow as their values allow."""
        self._read(
            HASH, "own_hash", "doc_id", "source", "file", "line", "offset", "size", "piece", *SIZES, "truncated",
            "loss_weight", "code",
        )  # fmt: skip
        found = self._tables.sql(DOCUMENTS).to_arrow_reader(BATCH_ROWS)
        parts = [pa.table([_narrow(column) for column in batch.columns], found.schema.names) for batch in found]
        return parts or [found.schema.empty_table()]


def _narrow(column: pa.Array) -> pa.Array:
    """A copy in the smallest integers that hold the values: a view of one column would keep all of DuckDB's batch."""
    if column.null_count == len(column):
        return pa.nulls(len(column))
    if column.type == pa.int64():
        least, most = pc.min_max(column).as_py().values()
        for width in (pa.int8(), pa.int16(), pa.int32()):
            if -(1 << width.bit_width - 1) <= least and most < 1 << width.bit_width - 1:
                return column.cast(width)
    return pa.concat_arrays([column, column[:0]])


def _plan_rows(documents: pa.Table, taken: Taken, plan: Plan) -> Iterator[pa.Table]:
    """The rows of the plan in parts: of each pack its documents, one after the other, and where each lies."""
    pack_id = plan.pack_id
    for first in range(0, plan.n_documents, BATCH_ROWS):
        part = slice(first, first + BATCH_ROWS)
        own = plan.document[part]
        placed = {name: getattr(plan, name)[part] for name in PLACES}
        placed |= {name: getattr(taken, name)[own] for name in ("copy_number", "epoch")}
        rows = documents.take(pa.array(taken.document[own]))
        yield pa.table(dict(zip(rows.column_names, rows.columns, strict=True)) | placed | {"pack": pack_id[part]})


def _count_ids(hashes: np.ndarray, taken: Taken) -> int:
    """Number of different ids, however often each is taken: rows of one id are neighbours in every pass."""
    once = hashes[(taken.copy_number == 0) & (taken.epoch == 0)]
    return int((once[1:] != once[:-1]).sum()) + bool(len(once))


def _truncated(documents: pa.Table, taken: Taken, sources: Sequence[str]) -> dict[str, int]:
    numbers, lost = (documents[name].to_numpy()[taken.document] for name in ("source_number", "truncated"))
    sums = np.bincount(numbers, weights=lost, minlength=len(sources)).astype(np.int64)
    return {name: number for name, number in zip(sources, sums.tolist(), strict=True) if number}
