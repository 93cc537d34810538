"""Short videos of several codecs and containers, whole and joined, against all pictures that PyAV decodes.

Frames must be those pictures, in their order, upright and with their pixels, at times that grow; a clip must be a part
of them. Files are written whole or to a pipe, as fragments, with late starts, times of any distance and open groups.
"""

from __future__ import annotations

import random
import struct
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from files import Case

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media.crops import decode_video
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.shape import VideoFrames
from preshard.packer_service.ingest.media.video import probe_video
from preshard.schemas.errors import DocumentError

KINDS = {
    "ts": ("libx264", "mpeg2video", "libx265"),
    "mpg": ("mpeg2video", "mpeg1video"),
    "vob": ("mpeg2video",),
    "mkv": ("libx264", "libvpx-vp9", "mpeg4", "ffv1"),
    "mp4": ("libx264", "mpeg4"),
    "flv": ("libx264", "flv1"),
    "avi": ("mpeg4", "mjpeg"),
    "webm": ("libvpx", "libvpx-vp9"),
    "nut": ("libx264", "mpeg4"),
    "gif": ("gif",),
    "apng": ("apng",),
}
FORMATS = {"mjpeg": "yuvj420p", "gif": "rgb8", "apng": "rgba"}
MUXERS = {"mkv": "matroska", "vob": "vob", "mpg": "mpeg", "ts": "mpegts"}
TO_A_PIPE = ("mkv", "webm", "ts", "flv", "nut")
FRAGMENTS = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
QUIET = {"libx265": {"x265-params": "log-level=none"}, "libvpx": {"cpu-used": "8"}, "libvpx-vp9": {"cpu-used": "8"}}
AS_IT_COMES = ("mpeg1video", "mpeg2video")
"""Codecs that take no rate but their own."""
ONE_WAY = ("flv1", "mjpeg", "ffv1", "libvpx", "libvpx-vp9", "gif", "apng")
"""Codecs of which no picture refers to a later one."""


def draw(seed: int, folder: Path) -> Case:
    rng = random.Random(seed)
    suffix = rng.choice(list(KINDS))
    codec, n_parts = rng.choice(KINDS[suffix]), rng.choice([1, 1, 2, 3]) if suffix != "nut" else 1
    made: dict[str, Any] = {"b_frames": rng.choice([0, 0, 2]), "gop": rng.choice([4, 12]), "rate": rng.choice([25, 10])}
    made["rate"] = 25 if codec in AS_IT_COMES else made["rate"]
    made["b_frames"] = 0 if codec in ONE_WAY else made["b_frames"]
    made["is_open"] = codec == "libx264" and rng.random() < 0.3
    made["is_piped"] = suffix in TO_A_PIPE and rng.random() < 0.3
    made["is_even"] = codec in AS_IT_COMES or suffix == "avi" or rng.random() < 0.7
    made["is_fragmented"] = suffix == "mp4" and rng.random() < 0.3
    data = b""
    for part in range(n_parts):
        path = folder / f"{part}.{suffix}"
        can_be_late = suffix in ("ts", "mp4") or (suffix == "mkv" and n_parts > 1 and not made["is_piped"])
        late = rng.choice([0, 0, 4000]) if can_be_late else 0
        _write(path, codec, rng.randint(6, 30), rng.getrandbits(32), late=late, **made)
        data += path.read_bytes()
        path.unlink()
    data = _turned(data, rng.randrange(4)) if suffix == "mp4" else data
    path = folder / f"f.{suffix}"
    path.write_bytes(data)
    how = [word for word in ("piped", "fragmented") if made[f"is_{word}"]] + ["joined"] * (n_parts > 1)
    return Case(kind=", ".join([suffix, codec, *how]), files=(path,), facts=seed)


def _write(
    path: Path,
    codec: str,
    count: int,
    seed: int,
    *,
    late: int,
    b_frames: int,
    gop: int,
    rate: int,
    is_open: bool,
    is_piped: bool,
    is_even: bool,
    is_fragmented: bool,
) -> None:
    rng = np.random.default_rng(seed)
    noise = rng.integers(0, 256, (count, 4, 6, 3), dtype=np.uint8)
    times = late + np.cumsum(np.ones(count, np.int64) if is_even else rng.choice([1, 1, 1, 2, 7], count))
    options = {"threads": "1", **QUIET.get(codec, {}), **({"x264-params": "open-gop=1"} if is_open else {})}
    with ExitStack() as stack:
        out = _Pipe(stack.enter_context(path.open("wb"))) if is_piped else str(path)
        muxer = MUXERS.get(path.suffix[1:], path.suffix[1:])
        container = stack.enter_context(av.open(out, "w", format=muxer, options=FRAGMENTS if is_fragmented else {}))
        stream = container.add_stream(codec, rate=rate, options=options)
        stream.width, stream.height = 96, 64
        stream.pix_fmt = FORMATS.get(codec, "yuv420p")
        stream.codec_context.time_base = Fraction(1, rate)
        stream.codec_context.gop_size = gop
        stream.codec_context.max_b_frames = b_frames
        for time, small in zip(times.tolist(), noise, strict=True):
            frame = av.VideoFrame.from_ndarray(np.kron(small, np.ones((16, 16, 1), np.uint8)), format="rgb24")
            frame = frame.reformat(format=stream.pix_fmt)
            frame.pts, frame.time_base = time - 1, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


@dataclass(frozen=True)
class _Pipe:
    """A file that cannot be sought."""

    file: Any

    def write(self, data: bytes) -> int:
        return self.file.write(data)


def _turned(data: bytes, quarters: int) -> bytes:
    """An MP4 file whose header turns its pictures: the nine numbers end eight bytes before the track's header does."""
    at = data.find(b"tkhd")
    end = at - 4 + int.from_bytes(data[at - 4 : at], "big") - 8
    c, s = ((1, 0), (0, 1), (-1, 0), (0, -1))[quarters]
    matrix = struct.pack(">9i", c << 16, s << 16, 0, -s << 16, c << 16, 0, 0, 0, 1 << 30)
    return data[: end - 36] + matrix + data[end:] if at > 0 else data


def judge(case: Case) -> list[str]:
    [path] = case.files
    expected = list[np.ndarray]()
    with suppress(av.FFmpegError), av.open(str(path)) as container:  # of joined files some decoders take the first part
        for frame in container.decode(video=0):
            expected.append(np.rot90(frame.to_ndarray(format="rgb24"), frame.rotation // 90))
    try:
        whole = _probe(path)
        pixels = _decode(path, whole)
    except DocumentError as error:
        return [f"{case.kind}: {error}; PyAV decodes {len(expected)}"] if expected else []
    if len(pixels) != len(expected):
        return [f"{case.kind}: {len(pixels)} frames of {len(expected)}"]
    wrong = [f"frame {i} is another" for i, (a, b) in enumerate(zip(pixels, expected, strict=True)) if (a != b).any()]
    steps = np.diff(whole.timestamps)
    if (steps <= 0).any() or ((steps > 1).any() and "fragmented, joined" not in case.kind):  # FFmpeg leaves some out
        wrong.append(f"times are no line: {whole.timestamps.tolist()}")
    rng = random.Random(case.facts)
    start = round(rng.uniform(0, float(whole.timestamps[-1])), 3)
    end = round(start + rng.uniform(0.05, 1), 3)
    first = max(int(np.searchsorted(whole.timestamps, start + 1e-9, side="right")) - 1, 0)
    last = int(np.searchsorted(whole.timestamps, end - 0.001 + 1e-6, side="right"))  # one of 1,000 targets a second
    try:
        part = _probe(path, start, end)
        if part.pts.tolist() != whole.pts[first:last].tolist():
            wrong.append(f"clip {start} to {end}: {part.pts.tolist()} is not {whole.pts[first:last].tolist()}")
        elif any((a != b).any() for a, b in zip(_decode(path, part), pixels[first:last], strict=True)):
            wrong.append(f"clip {start} to {end}: other pixels")
    except DocumentError as error:
        wrong.append(f"clip {start} to {end}: {error}")
    return [f"{case.kind}: {fault}" for fault in wrong[:3]]


def _probe(path: Path, start: float | None = None, end: float | None = None) -> VideoFrames:
    medium = Medium(kind="video", uri=path.name, start=start, end=end)
    return probe_video(medium, MediaReach.of(str(path.parent)), fps=1000.0, max_frames=100_000)


def _decode(path: Path, frames: VideoFrames) -> list[np.ndarray]:
    medium = Medium(kind="video", uri=path.name)
    size = (frames.width, frames.height)
    return [
        np.asarray(image)
        for image in decode_video(medium, MediaReach.of(str(path.parent)), frames, size=size, scaling="bicubic")
    ]
