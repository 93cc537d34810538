"""Thousands of hostile files and rows through real pack jobs, with what became of them and the memory of every process.

    python tests/hostile/run.py [--files 2000] [--rows 5000] [--seed 0] [--folder FOLDER]

Writes damaged media, and then broken lines, strings of 10 MB, a line of 100 MB and damaged Parquet. Packs each corpus
by the command line with two task processes, and verifies the dataset. Exit status 1 unless every file and row was
packed or rejected with a code and none counted twice, every whole file was packed, no document changed between
measuring and writing, no decoder crashed or hung, no process of the jobs took more than a GiB, and ``verify`` found the
datasets sound. Parquet files whose footers cannot be read are no source: that the command refuses them with one line is
looked at for each, and they are left out.
"""

from __future__ import annotations

import argparse
import collections
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

import psutil
import pyarrow.parquet as pq
from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path[:0] = [
    str(Path(__file__).parent),
    str(ROOT),
    *(str(ROOT / "tests" / name) for name in ("benchmarks", "support")),
]

from hostile_corpus import damaged, lies, row_id, seed_files, slow, write_corpus  # noqa: E402
from hostile_rows import broken_lines, drawn_lines, large_lines  # noqa: E402
from hostile_tables import damaged_parquet, parquet, typed_tables  # noqa: E402
from machine import hardware  # noqa: E402

from preshard.packer_service.ingest.source.files import list_fragments, read_fragment  # noqa: E402
from preshard.packer_service.ingest.source.listing import list_sources  # noqa: E402
from preshard.schemas.errors import REJECT_CODES, ConfigError  # noqa: E402

SETTINGS = [
    *("seq_len=2048", "vision.image_size=56", "vision.pool_size=2", "vision.max_crops=6", "video.max_frames=32"),
    *("video.fps=4", "max_images=64", "image_format=png", "images.pages=first"),
]
GIB = 1 << 30
BROKEN = re.compile("the decoder (failed|hung|ended|gave)")
"""Pattern in a reject of a file for which the decoder raised what nobody foresaw, crashed or hung."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000, help="damaged files, beside some 300 whole and lying ones")
    parser.add_argument("--rows", type=int, default=5000, help="drawn rows, beside the fixed ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep corpora and datasets here; it must not exist")
    arguments = parser.parse_args()
    print(hardware())
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary) / "run"
        seeds = seed_files()
        files = [*seeds, *lies(), *slow(), *damaged(seeds, arguments.files, arguments.seed)]
        rows = write_corpus(folder / "files/corpus", iter(files))
        print(f"{len(rows)} files")
        faults = pack(folder / "files")
        faults += outcomes(folder / "files/dataset", len(rows), {row_id(file) for file in files if file.whole})
        source = folder / "rows/corpus"
        source.mkdir(parents=True)
        Image.new("RGB", (40, 30), "olive").save(source / "0.png")
        n_rows = write_lines(source, arguments.rows, arguments.seed) + write_tables(source, arguments.seed)
        faults += pack(folder / "rows", "oversize=truncate", "ignore_columns=[other]") + outcomes(
            folder / "rows/dataset", n_rows
        )
    print("\n".join(f"FAULT: {fault}" for fault in faults) or "no fault")
    sys.exit(bool(faults))


def pack(folder: Path, *extra: str) -> list[str]:
    """Packs ``folder/corpus`` into ``folder/dataset`` and verifies it; prints time and memory, returns the faults."""
    program = [sys.executable, "-m", "preshard.packer_service"]
    settings = [word for setting in (*SETTINGS, *extra) for word in ("--set", setting)]
    places = [str(folder / "corpus"), "--out", str(folder / "dataset")]
    begin = time.monotonic()
    job = subprocess.Popen(
        [
            *program,
            "pack",
            *places,
            "--max-rejects",
            "1",
            "--allow-lost-files",
            "--executor",
            "ray",
            "--num-cpus",
            "2",
            *settings,
        ],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    peaks = peak_bytes(job)
    status = job.wait()
    print(f"pack: exit status {status}, {time.monotonic() - begin:.1f} s with the start of Ray")
    for name, most in sorted(peaks.items()):
        print(f"  {name:<10} peak RSS of one process {most / GIB:.2f} GiB")
    checked = subprocess.run([*program, "verify", str(folder / "dataset")], cwd=ROOT, check=False).returncode
    large = [f"a {name} process took {most / GIB:.2f} GiB" for name, most in peaks.items() if most > GIB]
    return large + [f"{what} ended with {code}" for what, code in (("pack", status), ("verify", checked)) if code]


def peak_bytes(job: subprocess.Popen[bytes]) -> collections.Counter[str]:
    """Most memory of the processes below a job until it ends, by the kind of the process."""
    peaks: collections.Counter[str] = collections.Counter()
    while job.poll() is None:
        with suppress(psutil.Error, OSError):  # one has ended meanwhile
            first = psutil.Process(job.pid)
            for process in (first, *first.children(recursive=True)):
                command = " ".join(process.cmdline())
                kind = "decoder" if "worker_process" in command else "task" if command.startswith("ray::") else "other"
                status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
                if found := re.search(r"VmHWM:\s+(\d+)", status):
                    peaks[kind] = max(peaks[kind], int(found[1]) * 1024)
        time.sleep(0.1)
    return peaks


def outcomes(dataset: Path, n_rows: int, whole: Collection[str] = ()) -> list[str]:
    """Prints how many were packed and rejected, by kind and code."""
    packed = set(pq.read_table(dataset / "documents.parquet")["doc_id"].to_pylist())
    rejects = pq.read_table(dataset / "rejects.parquet").to_pylist()
    print(f"packed {len(packed)}, rejected {len(rejects)} of {n_rows}")
    for (source, stage, code), count in sorted(
        collections.Counter((row["source"], row["stage"], row["code"]) for row in rejects).items()
    ):
        print(f"  {source:<6} {stage:<8} {code:<14} {count}")
    reasons = collections.Counter(re.sub(r"[\d.]+", "#", row["message"].split(": ", 1)[-1]) for row in rejects)
    for reason, count in reasons.most_common(25):
        print(f"  {count:>5}  {reason[:130]}")
    lost = n_rows - len(packed) - len(rejects)
    codes = {row["code"] for row in rejects} - set(REJECT_CODES)
    changed = [row["doc_id"] for row in rejects if "changed since it was measured" in row["message"]]
    late = [row["doc_id"] for row in rejects if row["stage"] == "write" and row["code"] != "decode_failed"]
    broken = [row["doc_id"] for row in rejects if BROKEN.search(row["message"])]
    faults: dict[str, object] = {
        "lost or counted twice": lost,
        "unknown codes": codes,
        "measured differently twice": changed,
        "rejected late": late,
    }
    faults["a decoder that broke"] = broken
    faults["long messages"] = [row["doc_id"] for row in rejects if len(row["message"]) > 10_000]
    missing = sorted(name for name in whole if name not in packed)
    return [f"{what}: {found}" for what, found in {**faults, "whole and not packed": missing}.items() if found]


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
    """Writes Parquet files, and returns the number of their rows; where a damaged group hides it, one."""
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


if __name__ == "__main__":
    main()
