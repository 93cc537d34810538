"""Sorted runs: what measuring found in some neighbouring fragments, in one file by the hash of the id.

The first half of an external sort. A run is sorted in memory and written in batches whose first hashes its header
names, so that a partition of all documents, which is a range of hashes, takes a few batches of every run and no more.
A run is an Arrow IPC file: of formats that many programs read, the one whose batches are addressed without decoding.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import UInt64
from pydantic import BaseModel, ConfigDict

from preshard.packer_service.job.arrow_files import BATCH_ROWS, narrow, opened, taken, write_batches
from preshard.packer_service.job.measure import MAX_UNUSED, MEASURED
from preshard.packer_service.job.measured import KeptFragment, read_measured
from preshard.packer_service.runtime.executors import TaskCounts
from preshard.packer_service.runtime.scratch import give_back_memory
from preshard.packer_service.shards.store import Folder
from preshard.schemas.document_ids import hash_ids, id_stems

RUNS = "runs"
RUN_ROWS = 1_000_000
"""Rows of a run, but for a single fragment that holds more: what a task sorts in some 400 MiB."""

MOST_COUNTED = 10_000
"""Names of unused columns that are counted at a time: rows of JSON can each have keys of their own."""

LOCATED = pa.schema(
    [
        *list(MEASURED)[1:],
        ("file", pa.int64()),
        ("line", pa.int64()),
        ("is_stored", pa.bool_()),
        ("id_hash", pa.uint64()),
    ]
)
"""Columns of a run: those of ``MEASURED``, with every ``doc_id`` filled in, ``file`` (its number among the source's
files), ``line`` (row in the file from 1), whether that is a packed dataset, and the hash of the id's stem, so that ids
that may become each other's lie together. Integers are as narrow as their values allow."""

_FACTS, _EDGES = b"facts", b"edges"


class RunFacts(BaseModel):
    """What the driver has to know of a run.

    Attributes:
        n_documents: documents, rejected ones included.
        n_lines: lines of each fragment.
        by_source: rows that can be packed, by source; 0 for a source of which every row was rejected.
        unused: by column that nothing reads, the files of this run that have it.
        first_file, last_file: numbers of the files that may have other rows in the runs before and behind.
        unused_of_first, unused_of_last: such columns of those files.
        thinned: documents with a video that ``video.max_frames`` thins.
        thinned_to: the largest time between two frames of theirs, in seconds.
        seconds: time that measuring took.
    """

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    n_documents: int
    by_source: dict[str, int]
    n_lines: list[int] = []
    unused: dict[str, int] = {}
    first_file: int = 0
    last_file: int = 0
    unused_of_first: list[str] = []
    unused_of_last: list[str] = []
    thinned: int = 0
    thinned_to: float = 0.0
    seconds: float = 0.0


class RunPart(NamedTuple):
    """A fragment of a run: what is kept of it, its file's number, label and kind, and the file's lines before it."""

    kept: KeptFragment
    file: int
    label: str
    is_dataset: bool
    lines_before: int


def run_name(first: int, end: int) -> str:
    """The name of the run of fragments ``[first, end)``, without its folder."""
    return f"{first:08d}-{end:08d}.arrow"


def cut_runs(kept: Sequence[KeptFragment], most_rows: int) -> list[list[KeptFragment]]:
    """Neighbouring fragments in runs of at most ``most_rows`` rows, or of one fragment."""
    runs, rows = list[list[KeptFragment]](), 0
    for each in kept:
        if runs and rows + each.n_rows <= most_rows and runs[-1][-1].number + 1 == each.number:
            runs[-1].append(each)
            rows += each.n_rows
        else:
            runs.append([each])
            rows = each.n_rows
    return runs


def merge_fragments(parts: Sequence[RunPart], work: str) -> TaskCounts:
    """Runs in a task: joins and sorts measured fragments, keeps them as a run, and then removes them."""
    folder = Folder(work)
    tables, seconds, unused = list[pa.Table](), 0.0, dict[int, set[str]]()
    for part in parts:
        found = read_measured(folder, part.kept)
        tables.append(locate(found.measured.table, part))
        unused.setdefault(part.file, set()).update(found.measured.unused)
        seconds += found.seconds
    table = pa.concat_tables(tables, promote_options="permissive")
    tables.clear()
    name = run_name(parts[0].kept.number, parts[-1].kept.number + 1)
    first, last = parts[0].file, parts[-1].file
    facts = count_run(table).model_copy(
        update={
            "n_lines": [part.kept.n_lines for part in parts],
            "unused": dict(sorted(Counter(name for names in unused.values() for name in names).items())),
            "first_file": first,
            "last_file": last,
            "unused_of_first": sorted(unused[first]),
            "unused_of_last": sorted(unused[last]),
            "seconds": round(seconds, 3),
        }
    )
    write_run(folder / RUNS, name, table, facts)
    for part in parts:
        folder.delete(part.kept.name)
    del found, table
    give_back_memory()  # the next run may be sorted in the same process
    return TaskCounts(amounts={"documents": facts.n_documents})


def most_unused(runs: Sequence[RunFacts], unused: Mapping[str, int]) -> dict[str, int]:
    """For the columns that nothing reads, the number of files that have them: of those that most files have.

    Args:
        runs: all of them, in order; a file may lie in several, and counts once.
        unused: the same, as the schemas of tables say it.
    """
    counts, open_file, seen = Counter(dict(unused)), -1, set[str]()
    for run in runs:
        counts.update(run.unused)
        if run.first_file != open_file:
            seen = set()
        again = seen & set(run.unused_of_first)
        counts.subtract(again)
        if run.last_file != run.first_file:
            seen = set()
        open_file, seen = run.last_file, seen | set(run.unused_of_last)
        if len(counts) > MOST_COUNTED:
            counts = Counter(dict(_most(counts, MOST_COUNTED // 2)))
    return dict(sorted(_most(counts, MAX_UNUSED)))


def _most(counts: Counter[str], number: int) -> list[tuple[str, int]]:
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:number]


def locate(table: pa.Table, part: RunPart) -> pa.Table:
    """Adds where each row is from, and an id to those without. As narrow as the values allow."""
    line = pc.add(table["row"], part.lines_before + 1)
    doc_ids = table["doc_id"]
    if doc_ids.null_count:
        location = pc.binary_join_element_wise(
            part.label, pc.cast(line, pa.string()), ":"
        )  # SourceFile.location of each
        doc_ids = pc.coalesce(doc_ids, location)
    columns = {name: table[name] for name in MEASURED.names} | {"doc_id": doc_ids, "line": line}
    of_all = {"file": part.file, "is_stored": part.is_dataset}
    columns |= {name: pa.repeat(value, len(table)) for name, value in of_all.items()}
    narrowed = {name: narrow(columns[name]) for name in LOCATED.names if name in columns}
    added = {"source": columns["source"].dictionary_encode(), "id_hash": pa.array(hash_ids(id_stems(doc_ids)))}
    return pa.table(narrowed | {"doc_id": doc_ids} | added).select(LOCATED.names)


def count_run(table: pa.Table) -> RunFacts:
    """What a run holds: the columns of :data:`LOCATED`."""
    sources = table["source"].unify_dictionaries()
    rejected = int(pc.sum(pc.is_valid(table["code"])).as_py() or 0)
    documents = int(pc.sum(pc.equal(table["piece"].cast(pa.int64()), 0)).as_py() or 0)
    names = dict.fromkeys(sorted(sources.unique().to_pylist()), 0)
    packable = sources.filter(pc.is_null(table["code"]))
    counts = {each["values"]: each["counts"] for each in packable.value_counts().to_pylist()}
    thinned = table["thinned_to"].filter(pc.equal(table["piece"].cast(pa.int64()), 0)).drop_null()
    return RunFacts(
        n_documents=documents + rejected,
        by_source=names | counts,
        thinned=len(thinned),
        thinned_to=pc.max(thinned.cast(pa.float64())).as_py() or 0.0,
    )


def write_run(runs: Folder, name: str, table: pa.Table, facts: RunFacts) -> None:
    """Writes a run: the rows sorted by ``id_hash``, those of one hash as they come."""
    hashes = table["id_hash"].to_numpy()
    order = np.argsort(hashes, kind="stable")
    edges = hashes[order[::BATCH_ROWS]].astype("<u8")
    ordered = taken({name: table[name] for name in table.column_names}, order)
    metadata = {_FACTS: facts.model_dump_json(), _EDGES: edges.tobytes()}
    write_batches(runs, name, ordered.replace_schema_metadata(metadata), range(0, len(ordered), BATCH_ROWS))


def read_facts(runs: Folder, name: str) -> RunFacts:
    with opened(runs, name) as run:
        return RunFacts.model_validate_json(run.schema.metadata[_FACTS])


def read_range(runs: Folder, name: str, low: int, high: int) -> pa.Table:
    """The rows of a run whose hash lies in ``[low, high)``, by hash."""
    with opened(runs, name) as run:
        edges: UInt64[np.ndarray, "batches"] = np.frombuffer(run.schema.metadata[_EDGES], "<u8")
        first = max(0, int(np.searchsorted(edges, np.uint64(low), "left")) - 1)
        end = len(edges) if high > int(edges[-1] if len(edges) else 0) else int(np.searchsorted(edges, np.uint64(high)))
        batches = [run.get_batch(i) for i in range(first, end)]
        table = pa.Table.from_batches(batches, schema=run.schema.remove_metadata())
    hashes = table["id_hash"].to_numpy()
    start, stop = (
        len(hashes) if edge >= 2**64 else int(np.searchsorted(hashes, np.uint64(edge))) for edge in (low, high)
    )
    # a copy, since a slice of few rows would keep its whole batches in memory, those of every run at once
    return table if stop - start == len(table) else table.take(pa.array(np.arange(start, stop)))


def location_of(labels: Sequence[str], file: pa.ChunkedArray, line: pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """How results name rows: by label of the file and number of the row (``SourceFile.location`` of each)."""
    return pc.binary_join_element_wise(pa.array(labels, pa.string()).take(file), pc.cast(line, pa.string()), ":")
