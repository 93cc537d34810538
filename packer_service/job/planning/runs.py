"""Sorted runs: what measuring found in some neighbouring fragments, in one file by the hash of the id.

A partition of all documents is a range of hashes, so it takes a few row groups of every run and no more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from duckdb import DuckDBPyConnection
from pydantic import BaseModel, ConfigDict

from preshard.packer_service.job.planning.measured import MAX_UNUSED, MEASURED, KeptFragment, read_measured
from preshard.packer_service.runtime.executors import TaskCounts
from preshard.packer_service.runtime.scratch import give_back_memory, scratch_folder
from preshard.packer_service.shards.store import Folder
from preshard.packer_service.tables.connect import connect, database_of_process
from preshard.packer_service.tables.rows import BATCH_ROWS, read_facts, sort_parts, write_rows
from preshard.schemas.dataset.document_ids import hash_ids, id_stems

RUNS = "runs"
RUN_ROWS = 1_000_000
"""Rows of a run, but for a single fragment that holds more."""

QUERY_MIB = 400
"""Memory in which the rows of a partition are joined and counted without a disk."""

FEW_ROWS = 500
"""Rows that are queried in a database that the process keeps: opening one takes longer, 20 ms."""

AS_SAID = "SET disabled_optimizers = 'join_order,build_side_probe_side'"
"""Keeps the sides of joins as queries say them; a setting of a whole database."""

MOST_COUNTED = 10_000
"""Names of unused columns that are counted at a time: rows of JSON can each have keys of their own."""

HASH = "stem_hash"
"""The column that runs are sorted by: the hash of the id without its number, so that ids that may become each other's
lie together."""

LOCATED = pa.schema(
    [
        *(field for field in MEASURED if field.name != "row"),
        ("file", pa.int64()),
        ("line", pa.int64()),
        ("is_stored", pa.bool_()),
        (HASH, pa.uint64()),
        ("own_hash", pa.uint64()),
    ]
)
"""Columns of a run: those of ``MEASURED``, with every ``doc_id`` filled in, ``file`` (its number among the source's
files), ``line`` (row in the file from 1), whether that is a packed dataset, and hashes of the id; ``own_hash`` is null
where it is that of the stem."""


class RunFacts(BaseModel):
    """Facts of a run that the driver has to know.

    Attributes:
        n_documents: documents, rejected ones included.
        n_rejected: rejected ones.
        by_source: rows that can be packed, by source; 0 for a source of which every row was rejected.
        unused: columns that nothing reads, by the number of the file.
        thinned: documents with a video that ``video.max_frames`` thins.
        thinned_to: the largest time between two frames of theirs, in seconds.
        seconds: time that measuring took.
        filtered: rows that ``where`` leaves out, by source.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    n_documents: int
    n_rejected: int
    by_source: dict[str, int]
    unused: dict[int, list[str]]
    thinned: int
    thinned_to: float
    seconds: float
    filtered: dict[str, int] = {}


class RunPart(NamedTuple):
    """A fragment of a run: what is kept of it, its file's number, label and kind, and the file's lines before it."""

    kept: KeptFragment
    file: int
    label: str
    is_dataset: bool
    lines_before: int


def run_name(first: int, end: int) -> str:
    """The name of the run of fragments ``[first, end)``, without its folder."""
    return f"{first:08d}-{end:08d}.parquet"


def cut_runs(n_rows: Sequence[int], most_rows: int) -> list[range]:
    """Neighbouring fragments in runs of at most ``most_rows`` rows, or of one fragment."""
    runs, rows = list[range](), 0
    for number, more in enumerate(n_rows):
        if runs and rows + more <= most_rows:
            runs[-1] = range(runs[-1].start, number + 1)
            rows += more
        else:
            runs.append(range(number, number + 1))
            rows = more
    return runs


def merge_fragments(parts: Sequence[RunPart], work: str) -> TaskCounts:
    """Runs in a task: sorts measured fragments into a run."""
    folder, counts = Folder(work), _RunCounts()

    def located() -> Iterator[pa.Table]:
        for part in parts:
            found = read_measured(folder, part.kept)
            counts.add_fragment(part.file, found.measured.unused, found.seconds, found.measured.filtered)
            yield locate(found.measured.table, part)

    name = run_name(parts[0].kept.number, parts[-1].kept.number + 1)
    facts = write_run(folder / RUNS, name, located(), counts)
    give_back_memory()  # the next run may be sorted in the same process
    return TaskCounts(amounts={"documents": facts.n_documents})


@contextmanager
def querying(tables: Mapping[str, Any] | None = None, *, rows: int | None = None) -> Iterator[DuckDBPyConnection]:
    """A connection of a task, which has one CPU and little memory; the rest waits on a disk.

    In joins the right side is what is looked up and kept in memory, as queries say it: of a stream DuckDB does not know
    how long it is, and takes the longer one.

    Args:
        tables: what queries name.
        rows: how many there are, where it is known. :data:`FEW_ROWS` need no disk, and no database of their own.
    """
    if rows is not None and rows <= FEW_ROWS:
        with connect(tables, database=database_of_process(AS_SAID)) as connection:
            yield connection
        return
    with (
        scratch_folder("preshard-tables-") as scratch,
        connect(tables, scratch=scratch, memory_mib=QUERY_MIB, threads=1) as connection,
    ):
        connection.execute(AS_SAID)
        yield connection


def write_run(runs: Folder, name: str, tables: Iterable[pa.Table], counts: _RunCounts | None = None) -> RunFacts:
    """Writes a run of rows with columns of :data:`LOCATED`; those that a table lacks are null."""
    counts = _RunCounts() if counts is None else counts

    parts = [LOCATED.empty_table()]
    for table in tables:
        counts.add_rows(table)
        parts.append(table)
    rows = sort_parts(parts, (HASH, "file", "line", "piece"))

    def batches() -> Iterator[pa.RecordBatch]:
        for first in range(0, len(rows), BATCH_ROWS):
            yield from rows.slice(first, BATCH_ROWS).select(LOCATED.names).cast(LOCATED).to_batches()

    write_rows(runs, name, batches(), LOCATED, by=HASH, facts=lambda: counts.facts().model_dump_json())
    return counts.facts()


def read_run_facts(runs: Folder, name: str) -> RunFacts:
    return RunFacts.model_validate_json(read_facts(runs, name))


class UnusedColumns:
    """Counts the files that have columns which nothing reads, while runs pass in order.

    Args:
        counts: the same, as the schemas of tables say it.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts, self._file, self._names = Counter(counts), -1, set[str]()

    def add(self, run: RunFacts) -> None:
        """A file may lie in several runs, and counts once."""
        for file, names in sorted(run.unused.items()):
            if file != self._file:
                self._counts.update(self._names)
                self._file, self._names = file, set()
            self._names.update(names)
        if len(self._counts) > MOST_COUNTED:
            self._counts = Counter(dict(self._most(MOST_COUNTED // 2)))

    def most(self) -> dict[str, int]:
        """The columns that most files have, by name."""
        self._counts.update(self._names)
        self._names = set()
        return dict(sorted(self._most(MAX_UNUSED)))

    def _most(self, number: int) -> list[tuple[str, int]]:
        return sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))[:number]


def locate(table: pa.Table, part: RunPart) -> pa.Table:
    """Adds where each row is from, and an id to those without."""
    line = pc.add(table["row"], part.lines_before + 1)
    doc_ids = table["doc_id"]
    if doc_ids.null_count:  # SourceFile.location of each
        doc_ids = pc.coalesce(doc_ids, pc.binary_join_element_wise(part.label, pc.cast(line, pa.string()), ":"))
    columns = {name: table[name] for name in table.column_names if name != "row"} | {"doc_id": doc_ids, "line": line}
    of_all = {"file": part.file, "is_stored": part.is_dataset}
    return pa.table(
        columns | {name: pa.repeat(value, len(table)) for name, value in of_all.items()} | hashes_of(doc_ids)
    )


def hashes_of(doc_ids: pa.ChunkedArray) -> dict[str, pa.Array]:
    """The columns of hashes of some ids."""
    own = np.zeros(len(doc_ids), np.uint64)
    marked = pc.match_substring(doc_ids, "#")
    is_marked = marked.to_numpy()
    own[is_marked] = hash_ids(doc_ids.filter(marked))
    return {HASH: pa.array(hash_ids(id_stems(doc_ids))), "own_hash": pa.array(own, mask=~is_marked)}


class _RunCounts:
    """Counts what a run holds while its rows pass."""

    def __init__(self) -> None:
        self._documents = self._rejected = self._thinned = 0
        self._thinned_to = self._seconds = 0.0
        self._by_source, self._unused = Counter[str](), dict[int, set[str]]()
        self._filtered = Counter[str]()

    def add_fragment(self, file: int, unused: Sequence[str], seconds: float, filtered: Mapping[str, int]) -> None:
        self._unused.setdefault(file, set()).update(unused)
        self._filtered.update(filtered)
        self._seconds += seconds

    def add_rows(self, table: pa.Table) -> None:
        nothing = pa.nulls(len(table))
        code, thinned_to = (table[name] if name in table.column_names else nothing for name in ("code", "thinned_to"))
        first = pc.fill_null(pc.equal(table["piece"], 0), False)
        self._rejected += len(table) - code.null_count
        self._documents += pc.sum(first).as_py() or 0
        for name, values in ((0, table["source"]), (1, table["source"].filter(pc.is_null(code)))):
            for each in values.value_counts().to_pylist():
                self._by_source[each["values"]] += each["counts"] * name
        thinned = thinned_to.cast(pa.float64()).filter(first).drop_null()
        self._thinned += len(thinned)
        self._thinned_to = max(self._thinned_to, pc.max(thinned).as_py() or 0.0)

    def facts(self) -> RunFacts:
        return RunFacts(
            n_documents=self._documents + self._rejected,
            n_rejected=self._rejected,
            by_source=dict(sorted(self._by_source.items())),
            unused={file: sorted(names) for file, names in self._unused.items() if names},
            thinned=self._thinned,
            thinned_to=self._thinned_to,
            seconds=round(self._seconds, 3),
            filtered=dict(sorted(self._filtered.items())),
        )
