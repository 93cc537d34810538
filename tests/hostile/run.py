"""Thousands of hostile files through a real pack job, with what became of them and the memory of every process.

    python tests/hostile/run.py [--files 2000] [--seed 0] [--folder FOLDER]

Writes a corpus, packs it by the command line with two task processes, and verifies the dataset. Exit status 1 unless
every file was packed or rejected with a code, every whole file was packed, no document changed between measuring and
writing, no decoder crashed or hung, no process of the job took more than a GiB, and ``verify`` found the dataset sound.
"""

from __future__ import annotations

import argparse
import collections
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT), str(ROOT / "tests" / "benchmarks")]

from hostile_corpus import damaged, lies, row_id, seed_files, slow, write_corpus  # noqa: E402
from machine import hardware  # noqa: E402
from processes import PeakMemory  # noqa: E402

from preshard.schemas.errors import REJECT_CODES  # noqa: E402

SETTINGS = [
    *("seq_len=2048", "vision.image_size=56", "vision.pool_size=2", "vision.max_crops=6", "video.max_frames=32"),
    *("video.fps=4", "max_images=64", "image_format=png", "images.pages=first"),
]
GIB = 1 << 30
BROKEN = re.compile("the decoder (failed|hung|ended|gave)")
"""What a reject says of a file for which the decoder raised what nobody foresaw, crashed or hung."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=2000, help="damaged files, beside some 300 whole and lying ones")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="keep corpus and dataset here; it must not exist")
    arguments = parser.parse_args()
    print(hardware())
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary) / "run"
        seeds = seed_files()
        files = [*seeds, *lies(), *slow(), *damaged(seeds, arguments.files, arguments.seed)]
        rows = write_corpus(folder / "corpus", iter(files))
        print(f"{len(rows)} files")
        faults = pack(folder)
        faults += outcomes(folder / "dataset", len(rows), {row_id(file) for file in files if file.whole})
    print("\n".join(f"FAULT: {fault}" for fault in faults) or "no fault")
    sys.exit(bool(faults))


def pack(folder: Path, *extra: str) -> list[str]:
    """Packs ``folder/corpus`` into ``folder/dataset`` and verifies it; prints time and memory, returns the faults."""
    program = [sys.executable, "-m", "preshard.packer_service"]
    settings = [word for setting in (*SETTINGS, *extra) for word in ("--set", setting)]
    places = [str(folder / "corpus"), "--out", str(folder / "dataset")]
    begin = time.monotonic()
    job = subprocess.Popen(
        [*program, "pack", *places, "--max-rejects", "1", "--executor", "ray", "--num-cpus", "2", *settings],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    peaks = PeakMemory(job.pid)
    status = peaks.watch_until_end(job)
    print(f"pack: exit status {status}, {time.monotonic() - begin:.1f} s with the start of Ray")
    for name, (resident, private) in sorted(peaks.by_kind().items()):
        print(f"  {name:<10} peak RSS of one process {resident / GIB:.2f} GiB, private {private / GIB:.2f} GiB")
    checked = subprocess.run([*program, "verify", str(folder / "dataset")], cwd=ROOT, check=False).returncode
    large = [f"a {name} process took {most / GIB:.2f} GiB" for name, (most, _) in peaks.by_kind().items() if most > GIB]
    return large + [f"{what} ended with {code}" for what, code in (("pack", status), ("verify", checked)) if code]


def outcomes(dataset: Path, n_rows: int, whole: set[str]) -> list[str]:
    """Prints how many were packed and rejected, by kind and code."""
    packed = set(pq.read_table(dataset / "documents.parquet")["doc_id"].to_pylist())
    rejects = pq.read_table(dataset / "rejects.parquet").to_pylist()
    print(f"packed {len(packed)}, rejected {len(rejects)} of {n_rows}")
    for (source, stage, code), count in sorted(
        collections.Counter((row["source"], row["stage"], row["code"]) for row in rejects).items()
    ):
        print(f"  {source:<6} {stage:<8} {code:<14} {count}")
    reasons = collections.Counter(re.sub(r"[\d.]+", "#", row["message"].split(": ", 1)[-1]) for row in rejects)
    for reason, count in reasons.most_common():
        print(f"  {count:>5}  {reason[:130]}")
    lost = n_rows - len(packed | {row["doc_id"] for row in rejects})
    codes = {row["code"] for row in rejects} - set(REJECT_CODES)
    changed = [row["doc_id"] for row in rejects if "changed since it was measured" in row["message"]]
    late = [row["doc_id"] for row in rejects if row["stage"] == "write" and row["code"] != "decode_failed"]
    broken = [row["doc_id"] for row in rejects if BROKEN.search(row["message"])]
    faults = {"lost": lost, "unknown codes": codes, "measured differently twice": changed, "rejected late": late}
    faults["a decoder that broke"] = broken
    missing = sorted(name for name in whole if name not in packed)
    return [f"{what}: {found}" for what, found in {**faults, "whole and not packed": missing}.items() if found]


if __name__ == "__main__":
    main()
