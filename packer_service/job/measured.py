"""What measuring keeps in a job's work folder: one table per fragment of the source.

Tasks keep their own results, so that a result outlives the driver, and no lengths pass through it. Every file is
written whole or not at all: what is there is done.
"""

from __future__ import annotations

import io
import json
import time
from collections import Counter
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from packer_service.ingest.source.containers.compressed import keep_copy, spooled
from packer_service.ingest.source.file import Fragment
from packer_service.job.measure import Measured, measure_fragment
from packer_service.runtime.executors import TaskCounts
from packer_service.shards.store import Folder
from schemas.codec import encode_table
from schemas.config import PackConfig
from schemas.errors import PreshardError
from schemas.filesystem import split_query

MEASURED_FOLDER = "measured"
COPIES = "copies"
"""Folder of the copies of compressed files that can be read at any position."""


class WorkError(PreshardError):
    """A file of the work folder cannot be read again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredFragment:
    """What measuring a fragment gave, and the seconds that it took."""

    measured: Measured
    seconds: float


def measured_name(index: int) -> str:
    return f"{MEASURED_FOLDER}/{index:08d}.parquet"


def measure_and_keep(item: tuple[int, Fragment], config: PackConfig, work: str) -> TaskCounts:
    """Runs in a task: measures a fragment and keeps its table under the fragment's number.

    Of a compressed file it keeps a copy first that can be read at any position, as the file itself cannot.
    """
    index, fragment = item
    started = time.monotonic()
    if fragment.file.copy is not None:
        path, query = split_query(fragment.file.copy)
        folder, _, name = path.rpartition("/")
        with Folder(folder + query).writer(name) as sink:
            keep_copy(spooled(fragment.file), sink)
    found = measure_fragment(fragment, config)
    facts = {
        "n_lines": str(found.n_lines),
        "unused": json.dumps(found.unused),
        "seconds": f"{time.monotonic() - started:.3f}",
    }
    Folder(work).write(measured_name(index), encode_table(found.table.replace_schema_metadata(facts)))
    return TaskCounts(amounts=count_rows(found.table), rejects=count_by_code(found.table))


def count_rows(measured: pa.Table) -> Counter[str]:
    """Number of documents and of rejected documents in a table of ``measure.MEASURED``."""
    rejected = len(measured) - measured["code"].null_count
    return Counter(documents=pc.sum(pc.equal(measured["piece"], 0)).as_py() or 0, rejected=rejected)


def count_by_code(table: pa.Table) -> dict[str, int]:
    """Number of rejected documents by their code."""
    counts = table["code"].drop_null().value_counts().to_pylist()
    return {count["values"]: count["counts"] for count in counts}


def read_measured(work: Folder, index: int) -> MeasuredFragment:
    """Reads back a fragment that was measured.

    Raises:
        WorkError: its file is damaged.
    """
    name = measured_name(index)
    try:
        table = pq.read_table(io.BytesIO(work.read(name)))
        facts = table.schema.metadata
        return MeasuredFragment(
            measured=Measured(
                table.replace_schema_metadata(None), int(facts[b"n_lines"]), json.loads(facts[b"unused"])
            ),
            seconds=float(facts[b"seconds"]),
        )
    except (pa.ArrowException, KeyError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise WorkError(f"{work.path(name)}: is damaged ({reason}); remove it and run the same command again") from None
