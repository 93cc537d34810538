"""Thousands of hostile rows through a real pack job: broken lines, strings of 10 MB, a line of 100 MB, damaged Parquet.

    python tests/hostile/rows.py [--rows 5000] [--seed 0]

Writes a source, packs it by the command line with two task processes and verifies the dataset. Exit status 1 unless
every row was packed or rejected with a code and none counted twice, nothing crashed, no process of the job took more
than a GiB, and ``verify`` found the dataset sound. Parquet files whose footers cannot be read are no source: that the
command refuses them with one line is looked at for each, and they are left out.
"""

from __future__ import annotations

import argparse
import collections
import sys
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
from PIL import Image

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
sys.path[:0] = [str(Path(__file__).parent), str(ROOT), str(TESTS / "benchmarks"), str(TESTS / "support")]

from hostile_rows import broken_lines, drawn_lines, large_lines  # noqa: E402
from hostile_tables import damaged_parquet, parquet, typed_tables  # noqa: E402
from machine import hardware  # noqa: E402
from run import pack  # noqa: E402

from preshard.packer_service.ingest.source.files import list_fragments, read_fragment  # noqa: E402
from preshard.packer_service.ingest.source.listing import list_sources  # noqa: E402
from preshard.schemas.errors import REJECT_CODES, ConfigError  # noqa: E402


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=5000, help="drawn rows, beside the fixed ones")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    print(hardware())
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        source = folder / "corpus"
        source.mkdir()
        Image.new("RGB", (40, 30), "olive").save(source / "0.png")
        n_rows = write_lines(source, arguments.rows, arguments.seed) + write_tables(source, arguments.seed)
        faults = pack(folder, "oversize=truncate") + outcomes(folder / "dataset", n_rows)
    print("\n".join(f"FAULT: {fault}" for fault in faults) or "no fault")
    sys.exit(bool(faults))


def write_lines(source: Path, count: int, seed: int) -> int:
    """Writes JSON Lines, and returns the number of rows."""
    lines = [*drawn_lines(count, seed), *broken_lines()]
    (source / "rows.jsonl").write_bytes(b"\r\n".join(lines))
    n_large = 0
    with (source / "large.jsonl").open("wb") as file:
        for n_large, line in enumerate(large_lines(), start=1):  # noqa: B007
            file.write(line + b"\n")
    n_lines = sum(bool(line.strip()) for line in lines)
    print(f"{n_lines} lines, {n_large} of 10 MB and more")
    return n_lines + n_large


def write_tables(source: Path, seed: int) -> int:
    """Writes Parquet files, and returns the number of their rows; a damaged row group counts as one."""
    n_rows = 0
    for name, table, _ in typed_tables():
        (source / f"{name}.parquet").write_bytes(parquet(table))
        n_rows += len(table)
    refused = kept = 0
    for number, data in enumerate(damaged_parquet(300, seed)):
        path = source / f"damaged_{number:03d}.parquet"
        path.write_bytes(data)
        try:
            fragments = list_fragments(list_sources([str(path)]).files)
        except ConfigError:
            path.unlink()
            refused += 1
            continue
        n_rows += sum(1 for fragment in fragments for _ in read_fragment(fragment).rows)
        kept += 1
    print(f"{kept} damaged Parquet files, and {refused} refused with one line")
    return n_rows


def outcomes(dataset: Path, n_rows: int) -> list[str]:
    """Prints how many rows were packed and rejected, by code."""
    documents = pq.read_table(dataset / "documents.parquet")["doc_id"].to_pylist()
    rejects = pq.read_table(dataset / "rejects.parquet").to_pylist()
    codes = collections.Counter((row["stage"], row["code"]) for row in rejects)
    packed = len(set(documents))
    print(f"{n_rows} rows: {packed} documents in {len(documents)} pieces packed, {len(rejects)} rejected")
    for (stage, code), count in sorted(codes.items()):
        print(f"  {stage:<8} {code:<14} {count}")
    longest = max(len(row["message"]) for row in rejects)
    faults = {
        "lost or counted twice": n_rows - packed - len(rejects),
        "unknown codes": {code for _, code in codes} - set(REJECT_CODES),
        "rejected late": sum(count for (stage, _), count in codes.items() if stage == "write"),
        "characters of a message": longest if longest > 10_000 else 0,
    }
    return [f"{what}: {found}" for what, found in faults.items() if found]


if __name__ == "__main__":
    main()
