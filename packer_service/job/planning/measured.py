"""Results of measuring in a job's work folder: one table per fragment of the source.

Tasks keep their own results, so that a result outlives the driver, and no lengths pass through it. Every file is
written whole or not at all: what is there is done. A file's name says how many lines and rows it holds, so listing the
folders of some hundred files tells the next step all that it needs to know before it reads any.
"""

from __future__ import annotations

import io
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from preshard.packer_service.runtime.executors import TaskCounts
from preshard.packer_service.shards.store import Folder
from preshard.packer_service.tables.rows import damaged
from preshard.schemas.encode import encode_table

MEASURED_FOLDER = "measured"
COPIES = "copies"
"""Folder of the copies of compressed files that can be read at any position."""

FOLDER_FILES = 256
"""Most fragments (or partitions) whose files share a folder: no listing is long, whatever the size of the source."""

MAX_UNUSED = 100
"""Most names of unused columns that are kept: rows of JSON can each have keys of their own."""

MEASURED = pa.schema(
    [
        ("row", pa.int64()),
        ("offset", pa.int64()),
        ("size", pa.int64()),
        ("doc_id", pa.string()),
        ("source", pa.string()),
        ("piece", pa.int64()),
        ("tokens", pa.int64()),
        ("images", pa.int64()),
        ("patches", pa.int64()),
        ("load", pa.int64()),
        ("area", pa.int64()),
        ("loss_weight", pa.float64()),
        ("truncated", pa.int64()),
        ("thinned_to", pa.float64()),
        ("content", pa.uint64()),
        ("rendered", pa.uint64()),
        *((name, pa.binary()) for name in ("text", "media", "pictures", "signature")),
        ("stage", pa.string()),
        ("code", pa.string()),
        ("message", pa.string()),
    ]
)
"""One row for each piece of a document, and for each rejected document (``code`` is not null). ``row`` counts in the
fragment from 0, ``offset`` and ``size`` say where the row lies, ``area`` counts the allowed pairs of the mask.
``thinned_to`` is the largest time between two frames of a video that ``video.max_frames`` thins, in seconds.
``content`` is a hash of what the row says, ``rendered`` one of the arrays that come of it; the columns after them are
those of :func:`~preshard.packer_service.job.planning.identify.identify`."""

PERMUTATIONS = 128
"""Entries of four bytes of a ``signature``."""


class Measured(NamedTuple):
    """A fragment's table, its lines (blank ones included), the fields of its rows that nothing reads, and how many rows
    of each source ``where`` leaves out.
    """

    table: pa.Table
    n_lines: int
    unused: list[str]
    filtered: Mapping[str, int] = MappingProxyType({})


class KeptFragment(NamedTuple):
    """A fragment whose table is kept: its number, its lines (blank ones included), and the rows of its table.

    ``unreachable`` counts the documents that a store did not give. A later run does not find such a fragment, and
    measures it again.
    """

    number: int
    n_lines: int
    n_rows: int
    unreachable: int = 0

    @property
    def name(self) -> str:
        group, place = divmod(self.number, FOLDER_FILES)
        again = f"-{self.unreachable}" if self.unreachable else ""
        return f"{MEASURED_FOLDER}/{group:06d}/{place:03d}-{self.n_lines}-{self.n_rows}{again}.parquet"


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredCounts(TaskCounts):
    """Counts from measuring a fragment."""

    kept: KeptFragment


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredFragment:
    """Results of measuring a fragment, and the seconds that it took."""

    measured: Measured
    seconds: float


def keep_measured(work: Folder, index: int, found: Measured, seconds: float) -> MeasuredCounts:
    """Writes what measuring a fragment gave."""
    facts = {"unused": json.dumps(found.unused), "filtered": json.dumps(dict(found.filtered))}
    facts |= {"seconds": f"{seconds:.3f}"}
    rejects = count_by_code(found.table)
    kept = KeptFragment(index, found.n_lines, len(found.table), rejects.get("unreachable_media", 0))
    work.write(kept.name, encode_table(found.table.replace_schema_metadata(facts)))
    return MeasuredCounts(amounts=count_rows(found.table), rejects=rejects, kept=kept)


def count_rows(measured: pa.Table) -> Counter[str]:
    """Number of documents and of rejected documents in a table of ``measure.MEASURED``."""
    rejected = len(measured) - measured["code"].null_count
    return Counter(documents=pc.sum(pc.equal(measured["piece"], 0)).as_py() or 0, rejected=rejected)


def count_by_code(table: pa.Table) -> dict[str, int]:
    """Number of rejected documents by their code."""
    counts = table["code"].drop_null().value_counts().to_pylist()
    return {count["values"]: count["counts"] for count in counts}


def find_measured(work: Folder, indices: Iterable[int], *, unreachable: bool = False) -> dict[int, KeptFragment]:
    """Fragments, of those given, that were measured before, by number. Lists only the folders that can hold them.

    Args:
        work: the work folder.
        indices: numbers of fragments.
        unreachable: whether those count of which a store did not give every document.
    """
    folders = (work / MEASURED_FOLDER).entries()
    found = dict[int, KeptFragment]()
    for group in dict.fromkeys(index // FOLDER_FILES for index in indices):
        if f"{group:06d}" in folders:
            for name in (work / MEASURED_FOLDER / f"{group:06d}").entries():
                stem, _, ending = name.partition(".")
                if ending == "parquet" and not name.startswith("."):
                    place, *counts = map(int, stem.split("-"))
                    kept = KeptFragment(group * FOLDER_FILES + place, *counts)
                    before = found.get(kept.number)
                    if (unreachable or not kept.unreachable) and (
                        before is None or kept.unreachable < before.unreachable
                    ):
                        found[kept.number] = kept
    return {index: found[index] for index in indices if index in found}


def read_measured(work: Folder, kept: KeptFragment) -> MeasuredFragment:
    """Reads back a fragment that was measured.

    Raises:
        WorkError: its file is damaged.
    """
    try:
        table = pq.read_table(io.BytesIO(work.read(kept.name)))
        facts = table.schema.metadata
        unused, filtered = (json.loads(facts[name]) for name in (b"unused", b"filtered"))
        found = Measured(table.replace_schema_metadata(None), kept.n_lines, unused, filtered)
        return MeasuredFragment(measured=found, seconds=float(facts[b"seconds"]))
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        raise damaged(work, kept.name, error) from None
