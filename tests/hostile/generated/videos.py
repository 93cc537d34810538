"""Short videos of several codecs and containers, whole and joined, against all pictures that PyAV decodes.

Frames must be those pictures, in their order and with their pixels, at times that grow; a clip must be a part of them.
"""

from __future__ import annotations

import random
from fractions import Fraction
from pathlib import Path

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
}
QUIET = {"libx265": {"x265-params": "log-level=none"}, "libvpx": {"cpu-used": "8"}, "libvpx-vp9": {"cpu-used": "8"}}
AS_IT_COMES = ("mpeg1video", "mpeg2video")
"""Codecs that take no rate but their own."""


def draw(seed: int, folder: Path) -> Case:
    rng = random.Random(seed)
    suffix = rng.choice(list(KINDS))
    codec, n_parts = rng.choice(KINDS[suffix]), rng.choice([1, 1, 2, 3])
    n_parts = n_parts if suffix in ("ts", "mpg", "vob", "mkv") else 1
    options = {"b_frames": rng.choice([0, 0, 2]), "gop": rng.choice([4, 12]), "rate": rng.choice([25, 10])}
    options["rate"] = 25 if codec in AS_IT_COMES else options["rate"]
    options["b_frames"] = 0 if codec in ("flv1", "mjpeg", "ffv1", "libvpx", "libvpx-vp9") else options["b_frames"]
    data = b""
    for part in range(n_parts):
        path = folder / f"{part}.{suffix}"
        late = rng.choice([0, 0, 4000]) if suffix == "ts" or (suffix == "mkv" and n_parts > 1) else 0
        _write(path, codec, rng.randint(6, 30), rng.getrandbits(32), late=late, **options)
        data += path.read_bytes()
        path.unlink()
    path = folder / f"f.{suffix}"
    path.write_bytes(data)
    return Case(kind=f"{suffix}, {codec}{', joined' if n_parts > 1 else ''}", files=(path,), facts=seed)


def _write(path: Path, codec: str, count: int, seed: int, *, late: int, b_frames: int, gop: int, rate: int) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, (count, 4, 6, 3), dtype=np.uint8)
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate, options={"threads": "1", **QUIET.get(codec, {})})
        stream.width, stream.height = 96, 64
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.time_base = Fraction(1, rate)
        stream.codec_context.gop_size = gop
        stream.codec_context.max_b_frames = b_frames
        for number, small in enumerate(noise):
            frame = av.VideoFrame.from_ndarray(np.kron(small, np.ones((16, 16, 1), np.uint8)), format="rgb24")
            frame = frame.reformat(format=stream.pix_fmt)
            frame.pts, frame.time_base = late + number, Fraction(1, rate)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def judge(case: Case) -> list[str]:
    [path] = case.files
    with av.open(str(path)) as container:
        expected = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    try:
        whole = _probe(path)
        pixels = _decode(path, whole)
    except DocumentError as error:
        return [f"{case.kind}: {error}; PyAV decodes {len(expected)}"]
    if len(pixels) != len(expected):
        return [f"{case.kind}: {len(pixels)} frames of {len(expected)}"]
    wrong = [f"frame {i} is another" for i, (a, b) in enumerate(zip(pixels, expected, strict=True)) if (a != b).any()]
    if (np.diff(whole.timestamps) <= 0).any() or (np.diff(whole.timestamps) > 1).any():
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
