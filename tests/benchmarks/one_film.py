"""Many clips of one long film in a shard: each decoded alone, and all of them in one pass, as packing does it.

    python tests/benchmarks/one_film.py [--minutes 10] [--rounds 3] [--size 640x360]

The film is H.264 with B-frames at 30 frames a second, of which two a second are shown, at 378 x 378. Both ways open the
file, decode, scale and encode by the same calls, take turns, and must give the same bytes. Times are processor time,
the medians of all rounds; ratios are the medians of the rounds' own. "decoded" counts pictures.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "benchmarks")]

from decoding import CODECS, FRAME_RATE, make_clip, recorded  # noqa: E402
from machine import hardware  # noqa: E402

from preshard.packer_service.ingest.document import Medium  # noqa: E402
from preshard.packer_service.ingest.media.crops import (  # noqa: E402
    Picture,
    decode_video,
    encode_image,
    encoded_pictures,
)
from preshard.packer_service.ingest.media.reach import MediaReach  # noqa: E402
from preshard.packer_service.ingest.media.shape import VideoFrames  # noqa: E402
from preshard.packer_service.ingest.media.video import probe_video  # noqa: E402

SIZE = (378, 378)
PART_SECONDS = 60
JPEG: dict[str, Any] = {"image_format": "jpeg", "jpeg_quality": 90}

Clips = list[tuple[float, float]]
CASES: dict[str, Clips] = {
    "40 clips of 10 s, 5 s between them": [(15.0 * i, 15.0 * i + 10) for i in range(40)],
    "40 clips of 10 s, each half over the next": [(5.0 * i, 5.0 * i + 10) for i in range(40)],
    "10 questions about the same minute": [(30.0, 90.0)] * 10,
}


def make_film(path: Path, minutes: int, size: tuple[int, int]) -> None:
    """A minute of film, over and over, without encoding it again."""
    part = path.with_name("part.mp4")
    make_clip(part, *CODECS["H.264, B-frames"][1:], PART_SECONDS, size)
    with av.open(str(part)) as one, av.open(str(path), "w") as film:
        given = one.streams.video[0]
        stream = film.add_stream_from_template(given)
        length = int(PART_SECONDS / given.time_base)
        for number in range(minutes):
            one.seek(0)
            for packet in one.demux(given):
                if packet.size:
                    packet.pts, packet.dts = packet.pts + number * length, packet.dts + number * length
                    packet.stream = stream
                    film.mux(packet)


def alone(path: Path, clips: Sequence[VideoFrames]) -> list[list[bytes]]:
    """Each clip by itself."""
    medium = Medium(kind="video", uri=path.name)
    return [
        [
            encode_image(image, **JPEG)
            for image in decode_video(medium, MediaReach.of(str(path.parent)), clip, size=SIZE)
        ]
        for clip in clips
    ]


def together(path: Path, clips: Sequence[VideoFrames]) -> list[list[bytes]]:
    """All clips in one pass."""
    shown = [[Picture(tick, SIZE, "reduced") for tick in clip.pts.tolist()] for clip in clips]
    asked = {picture for clip in shown for picture in clip}
    found = dict(encoded_pictures(Medium(kind="video", uri=path.name), MediaReach.of(str(path.parent)), asked, **JPEG))
    return [[found[picture] for picture in clip] for clip in shown]


WAYS: dict[str, Callable[[Path, Sequence[VideoFrames]], list[list[bytes]]]] = {"alone": alone, "together": together}


def measure(path: Path, clips: Clips, rounds: int) -> str:
    """A row of the table."""
    media = [Medium(kind="video", uri=path.name, start=start, end=end) for start, end in clips]
    frames = [probe_video(medium, MediaReach.of(str(path.parent)), fps=2, max_frames=10**6) for medium in media]
    given, decoded, spent = [], [], dict[str, list[float]]()
    for name, way in WAYS.items():
        with recorded() as counted:
            given.append(way(path, frames))
        decoded.append(counted["pictures"])
        spent[name] = []
    assert given[0] == given[1], "bytes differ"
    for number in range(rounds):
        for name, way in list(WAYS.items())[:: -1 if number % 2 else 1]:
            begin = time.process_time()
            way(path, frames)
            spent[name].append(time.process_time() - begin)
    times = np.array(list(spent.values()))
    seconds = " | ".join(f"{value:.2f}" for value in np.median(times, axis=1))
    shown, ratio = sum(clip.n_frames for clip in frames), float(np.median(times[0] / times[1]))
    return f"{shown} | {decoded[0]} | {decoded[1]} | {seconds} | {ratio:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--size", default="640x360")
    chosen = parser.parse_args()
    width, height = map(int, chosen.size.split("x"))
    print(f"{chosen.minutes} min of {width} x {height} at {FRAME_RATE} frames a second; {hardware()}\n")
    with tempfile.TemporaryDirectory() as folder:
        film = Path(folder, "film.mp4")
        make_film(film, chosen.minutes, (width, height))
        cases = {name: clips for name, clips in CASES.items() if clips[-1][1] <= 60 * chosen.minutes}
        print("| clips | shown | decoded alone | in one pass | alone (s) | in one pass (s) | ratio |")
        print("|---|---|---|---|---|---|---|")
        for name, clips in cases.items():
            print(f"| {name} | {measure(film, clips, chosen.rounds)} |", flush=True)


if __name__ == "__main__":
    main()
