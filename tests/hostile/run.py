"""Thousands of hostile files through a real pack job, with what became of them, the memory of every process and time.

    python tests/hostile/run.py [--files 2000] [--seed 0] [--folder FOLDER]

Writes a corpus, packs it by the command line with two task processes, verifies the dataset, and then looks at each file
again by itself for its time. Exit status 1 unless every file was packed or rejected with a code, every whole file was
packed, no document changed between measuring and writing, nothing crashed or hung, no process of the job took more than
a GiB, and ``verify`` found the dataset sound.
"""

from __future__ import annotations

import argparse
import collections
import json
import multiprocessing as mp
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(Path(__file__).parent), str(ROOT), str(ROOT / "tests" / "benchmarks")]

from hostile_corpus import damaged, lies, row_id, seed_files, slow, write_corpus  # noqa: E402
from machine import hardware  # noqa: E402
from processes import PeakMemory  # noqa: E402

from preshard.packer_service.config import load_config  # noqa: E402
from preshard.packer_service.ingest.document import Medium  # noqa: E402
from preshard.packer_service.ingest.families.family import CropShape  # noqa: E402
from preshard.packer_service.ingest.media.crops import decode_video  # noqa: E402
from preshard.packer_service.ingest.media.image import decode_image, probe_image  # noqa: E402
from preshard.packer_service.ingest.media.reach import MediaReach  # noqa: E402
from preshard.packer_service.ingest.media.video import probe_video  # noqa: E402
from preshard.schemas.config import PackConfig  # noqa: E402
from preshard.schemas.errors import REJECT_CODES, DocumentError  # noqa: E402

SETTINGS = [
    *("seq_len=2048", "vision.image_size=56", "vision.pool_size=2", "vision.max_crops=6", "video.max_frames=32"),
    *("video.fps=4", "max_images=64", "image_format=png", "images.pages=first"),
]
HANG_SECONDS = 120
GIB = 1 << 30


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
        faults += file_by_file(folder / "corpus", rows)
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
    faults = {"lost": lost, "unknown codes": codes, "measured differently twice": changed, "rejected late": late}
    missing = sorted(name for name in whole if name not in packed)
    return [f"{what}: {found}" for what, found in {**faults, "whole and not packed": missing}.items() if found]


def file_by_file(folder: Path, rows: list[dict[str, Any]]) -> list[str]:
    """Each file by itself in a process that may die; prints the longest time."""
    context, faults, times = mp.get_context("spawn"), [], []
    process = None
    for row in rows:
        if process is None:
            here, there = context.Pipe()
            process = context.Process(target=_look, args=(str(folder), there), daemon=True)
            process.start()
            there.close()
        here.send(row)
        try:
            if not here.poll(HANG_SECONDS):
                raise TimeoutError(f"hangs for more than {HANG_SECONDS} s")
            seconds, fault = here.recv()
            times.append((seconds, str(row["id"])))
            faults += [fault] if fault else []
        except (EOFError, TimeoutError) as error:
            process.kill()
            process.join()
            faults.append(f"{row['id']}: {error or f'the process ended with {process.exitcode}'}")
            process = None
    if process is not None:
        here.send(None)
        process.join()
    print("longest: " + ", ".join(f"{name} {seconds:.2f} s" for seconds, name in sorted(times)[:-6:-1]))
    return faults


def _look(folder: str, rows: Connection) -> None:
    """The process that may die: answers every row with seconds and a fault, if there is one."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # to which libraries write their complaints about damaged files
    config = load_config(None, SETTINGS)
    with suppress(EOFError):  # the process that asks is gone
        for row in iter(rows.recv, None):
            begin, fault = time.monotonic(), None
            try:
                _decode(row["messages"][0]["content"][0], folder, config)
            except DocumentError:
                pass
            except BaseException as error:
                fault = f"{row['id']}: {type(error).__name__}: {json.dumps(str(error))[:300]}"
            rows.send((time.monotonic() - begin, fault))


def _decode(part: dict[str, str], folder: str, config: PackConfig) -> None:
    medium, size = Medium(kind=part["type"], uri=part[part["type"]]), config.vision.image_size
    if medium.kind == "image":
        probe_image(medium, MediaReach.of(folder))
        decode_image(medium, MediaReach.of(folder), [CropShape.whole(size, size)], "reduced")
    else:
        frames = probe_video(medium, MediaReach.of(folder), fps=config.video.fps, max_frames=config.video.max_frames)
        collections.deque(decode_video(medium, MediaReach.of(folder), frames, size=(size, size)), maxlen=0)


if __name__ == "__main__":
    main()
