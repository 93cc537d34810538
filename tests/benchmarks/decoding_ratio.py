"""Is decoding as packing does it ever slower than decoding every picture of a clip? Decided row by row.

    python tests/benchmarks/decoding_ratio.py                                    # some 4 minutes
    python tests/benchmarks/decoding_ratio.py --only AV1/all "MPEG-4, none/all" --turn-seconds 30

"every" and "now" are those of ``decoding.py``, which says how much faster the one is where pictures can be left out.
Here are the rows in which none or few can be, so that both do nearly the same: short clips, timed in many short turns
(``paired.py``). Each row says between which bounds "every / now" lies with 95 % certainty; beside it "now / now", whose
bounds must hold 1. A row whose bounds both lie below 0.98 is slower than plain decoding, and makes the status 1. The
last rows are of pictures so small that what is done around the decoder shows.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "benchmarks")]

from decoding import CODECS, FRAME_RATE, as_packed, every, make_clip, nothing, pixels  # noqa: E402
from machine import hardware  # noqa: E402
from paired import compare  # noqa: E402

from preshard.packer_service.ingest.document import Medium  # noqa: E402
from preshard.packer_service.ingest.media.reach import MediaReach  # noqa: E402
from preshard.packer_service.ingest.media.video import probe_video  # noqa: E402

LEAST = 0.98
"""Least "every / now" that is wanted."""

FRAME_RATES = {"0.5": 0.5, "2": 2.0, "all": 1000.0}

CLOSE = (*(f"{codec}/all" for codec in CODECS), "H.264, none/2", "VP9/0.5", "VP9/2", "AV1/0.5", "AV1/2")
"""Rows in which nothing can be left out, or little."""

TINY = ("H.264, B-frames/all", "MPEG-4, B-frames/all", "MPEG-4, none/all")
"""Rows that are looked at again with tiny pictures."""

SECONDS, SIZE = 2, (640, 360)
TINY_SECONDS, TINY_SIZE = 10, (64, 48)


def decide(path: Path, fps: float, seconds: float) -> tuple[str, bool]:
    """A row, and whether it says that "now" is slower than is wanted.

    Args:
        path: the clip.
        fps: wanted pictures per second.
        seconds: processor time to spend on it; a third of it goes to the same call twice.
    """
    medium = Medium(kind="video", uri=path.name)
    ticks = probe_video(medium, MediaReach.of(str(path.parent)), fps=fps, max_frames=10**6).pts.tolist()
    assert every(path, ticks, pixels) == as_packed(path, ticks, pixels), "pixels differ"
    found = compare(lambda: every(path, ticks, nothing), lambda: as_packed(path, ticks, nothing), seconds * 2 / 3)
    itself = compare(lambda: as_packed(path, ticks, nothing), lambda: as_packed(path, ticks, nothing), seconds / 3)
    return f"{len(ticks)} | {found} | {itself}", found.high < LEAST


def decide_all(folder: Path, rows: Sequence[str], seconds: float) -> bool:
    """Prints all rows; returns whether any is slower than is wanted."""
    tried = [(row, SECONDS, SIZE) for row in rows]
    tried += [(row, TINY_SECONDS, TINY_SIZE) for row in TINY if row in rows]
    print("| codec | frames a second | pixels | wanted | every / now (95 %) | now / now (95 %) | |")
    print("|---" * 7 + "|")
    any_slower = False
    for row, clip_seconds, (width, height) in tried:
        name, _, rate = row.rpartition("/")
        file, codec, options = CODECS[name]
        path = Path(folder, f"{width}-{file}")
        if not path.exists():
            make_clip(path, codec, options, clip_seconds, (width, height))
        shown, is_slower = decide(path, FRAME_RATES[rate], seconds)
        any_slower |= is_slower
        verdict = f"below {LEAST}" if is_slower else ""
        print(f"| {name} | {rate} | {width} x {height} | {shown} | {verdict} |", flush=True)
    return any_slower


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=list(CLOSE), help="rows: CODEC/RATE, where RATE is 0.5, 2 or all")
    parser.add_argument("--turn-seconds", type=float, default=12, help="processor time that each row takes")
    given = parser.parse_args()
    print(f"clips of {FRAME_RATE} frames a second; {hardware()}, load {os.getloadavg()[0]:.1f}\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        any_slower = decide_all(Path(folder), given.only, given.turn_seconds)
    print(f"\nload {os.getloadavg()[0]:.1f}")
    sys.exit(any_slower)


if __name__ == "__main__":
    main()
