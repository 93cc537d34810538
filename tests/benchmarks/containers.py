"""What reading a source costs in each container: the same texts from the first to the last row, and again in any order.

    python tests/benchmarks/containers.py [--documents 100000] [--again 4000] [--packed 3000]

Prints processor time, since it does not depend on what else runs. "rows" reads every row as measuring does; "again"
reads some of them in random order by their places, as writing does; a compressed file is read again from the copy that
the job keeps, whose making is a column of its own. "job" is all of a job over the first rows, in this process, with one
layout; its two stages, by the clock, are behind it.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import gzip
import io
import json
import os
import sys
import tarfile
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import ipc

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from documents import write_source  # noqa: E402
from machine import hardware  # noqa: E402

from preshard.packer_service.config import load_config  # noqa: E402
from preshard.packer_service.ingest.source.containers.compressed import keep_copy, spooled  # noqa: E402
from preshard.packer_service.ingest.source.file import RowReference, SourceFile  # noqa: E402
from preshard.packer_service.ingest.source.files import list_fragments, read_fragment, read_row  # noqa: E402
from preshard.packer_service.ingest.source.listing import list_sources  # noqa: E402
from preshard.packer_service.job.pack import pack  # noqa: E402
from preshard.packer_service.runtime.executors import PlainExecutor  # noqa: E402

SETTINGS = ["seq_len=16384", "layouts=[contiguous]", "ring_degrees=[1]", "cp_sizes=[1]"]
Row = dict[str, Any]


class Quiet:
    """A progress that says nothing."""

    def note(self, message: str) -> None: ...

    def step(self, what: str, done: int, total: int, amounts: object = None) -> None: ...


def lines(rows: Sequence[Row]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def records(rows: Sequence[Row]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def samples(rows: Sequence[Row]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for number, row in enumerate(rows):
            for suffix, data in (("txt", row["text"].encode()), ("json", json.dumps({"id": row["id"]}).encode())):
                info = tarfile.TarInfo(f"{number:08d}.{suffix}")
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


def parquet(rows: Sequence[Row]) -> bytes:
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(list(rows)), out, row_group_size=1000)
    return out.getvalue()


def arrow(rows: Sequence[Row]) -> bytes:
    out = io.BytesIO()
    table = pa.Table.from_pylist(list(rows))
    with ipc.new_stream(out, table.schema) as stream:
        stream.write_table(table, max_chunksize=1000)
    return out.getvalue()


WRITERS: dict[str, Callable[[Sequence[Row]], bytes]] = {
    "jsonl": lines,
    "json": lambda rows: json.dumps(list(rows)).encode(),
    "csv": records,
    "parquet": parquet,
    "arrow": arrow,
    "tar": samples,
    "jsonl.gz": lambda rows: gzip.compress(lines(rows)),
    "jsonl.zst": lambda rows: zstd(lines(rows)),
    "json.gz": lambda rows: gzip.compress(json.dumps(list(rows)).encode()),
    "csv.gz": lambda rows: gzip.compress(records(rows)),
    "tar.gz": lambda rows: gzip.compress(samples(rows)),
}


@contextlib.contextmanager
def timed(times: dict[str, float], name: str) -> Any:
    start = time.process_time()
    yield
    times[name] = time.process_time() - start


def read_all(file: SourceFile) -> list[RowReference]:
    return [place for fragment in list_fragments([file]) for _, place, _ in read_fragment(fragment).rows]


def measured(path: Path, again: int, folder: Path) -> dict[str, float]:
    """Seconds of each step, and sizes."""
    times: dict[str, float] = {"bytes": path.stat().st_size}
    [file] = list_sources([str(path)]).files
    with timed(times, "rows"):
        places = read_all(file)
    if file.compression is not None:
        copy = folder / "copy.zst"
        with timed(times, "copy"), copy.open("wb") as sink:
            keep_copy(spooled(file), sink)
        file, times["copied"] = replace(file, copy=str(copy)), copy.stat().st_size
    chosen = np.random.default_rng(0).permutation(len(places))[:again].tolist()
    with timed(times, "again"):
        for number in chosen:
            read_row(file, places[number])
    return times


def packed(path: Path, n_rows: int) -> dict[str, float]:
    """Seconds of a whole job and of its stages."""
    times: dict[str, float] = {}
    out, config = path.with_name(f"{path.name}.dataset"), load_config(None, SETTINGS)
    with timed(times, "job"):
        outcome = pack([str(path)], str(out), config, PlainExecutor(), Quiet())
    assert outcome.manifest.counts.documents == n_rows
    return {**times, **outcome.seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=100_000)
    parser.add_argument("--again", type=int, default=4_000, help="rows that are read again")
    parser.add_argument("--packed", type=int, default=3_000, help="rows that are packed")
    given = parser.parse_args()
    print(f"{hardware()}, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        write_source(folder / "texts.jsonl", given.documents)
        rows = [json.loads(line) for line in (folder / "texts.jsonl").read_text(encoding="utf-8").splitlines()]
        print(f"{len(rows):,} texts, {sum(len(row['text']) for row in rows) / 1e6:.1f} million characters")
        heads = ("MB", "rows, us", "copy, MB", "copy, us", "again, us", "job, ms")
        print(f"{'container':<10}" + "".join(f"{head:>11}" for head in heads) + "   of it measure, write (clock, s)")
        for name, write in WRITERS.items():
            path = folder / f"texts_{name.replace('.', '_')}.{name}"
            path.write_bytes(write(rows))
            found, per_row = measured(path, min(given.again, len(rows)), folder), 1e6 / len(rows)
            few = path.with_name(f"few_{path.name}")
            few.write_bytes(write(rows[: given.packed]))
            found |= packed(few, min(given.packed, len(rows)))
            values = (
                *(found["bytes"] / 1e6, found["rows"] * per_row, found.get("copied", 0) / 1e6),
                *(found.get("copy", 0) * per_row, found["again"] * 1e6 / min(given.again, len(rows))),
                found["job"] * 1e3 / min(given.packed, len(rows)),
            )
            stages = f"   {found['measure_seconds']:.1f}, {found['write_seconds']:.1f}"
            print(f"{name:<10}" + "".join(f"{value:11.2f}" for value in values) + stages, flush=True)


if __name__ == "__main__":
    main()
