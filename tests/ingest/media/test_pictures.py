"""Pictures left out on the way to those asked for: fewer are decoded, and those are the same in every bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media.crops import decode_video
from preshard.packer_service.ingest.media.demux import open_at
from preshard.packer_service.ingest.media.pictures import LostPictureError, PictureReader, can_skip
from preshard.packer_service.ingest.media.reach import MediaReach, open_media
from preshard.packer_service.ingest.media.shape import VideoFrames
from preshard.schemas.errors import DocumentError

X265 = "log-level=none:pools=1:frame-threads=1:keyint=40:min-keyint=40"
CODECS: dict[str, tuple[bool, dict[str, Any]]] = {
    "h264.mp4": (True, {"b_frames": 3}),
    "h264_without.mp4": (True, {}),
    "h264_deep.mkv": (True, {"b_frames": 7, "options": {"x264-params": "b-pyramid=normal:b-adapt=0:ref=4"}}),
    "h264_fields.mkv": (False, {"b_frames": 2, "options": {"flags": "+ildct+ilme"}}),
    "h264.ts": (False, {"b_frames": 3}),
    "hevc.mp4": (True, {"codec": "libx265", "options": {"x265-params": f"bframes=3:{X265}"}}),
    "hevc_layers.mp4": (False, {"codec": "libx265", "options": {"x265-params": f"bframes=7:temporal-layers=3:{X265}"}}),
    "hevc.ts": (False, {"codec": "libx265", "options": {"x265-params": f"bframes=3:{X265}"}}),
    "vp8.webm": (False, {"codec": "libvpx", "options": {"lag-in-frames": "8", "auto-alt-ref": "1"}}),
    "vp9.webm": (False, {"codec": "libvpx-vp9", "options": {"lag-in-frames": "8", "cpu-used": "8"}}),
    "av1.mp4": (False, {"codec": "libsvtav1", "options": {"preset": "12", "svtav1-params": "lp=1"}}),
    "mpeg4.mp4": (True, {"codec": "mpeg4", "b_frames": 2, "times": range(0, 1600, 40)}),
    "mpeg4.avi": (True, {"codec": "mpeg4", "b_frames": 2, "times": range(40), "ticks": 25}),
    "mpeg2.mkv": (True, {"codec": "mpeg2video", "b_frames": 2, "times": range(40), "ticks": 25}),
    "mpeg1.mkv": (True, {"codec": "mpeg1video", "b_frames": 2, "times": range(40), "ticks": 25}),
    "ffv1.mkv": (False, {"codec": "ffv1"}),
    "mjpeg.mkv": (False, {"codec": "mjpeg", "pix_fmt": "yuvj420p"}),
    "prores.mov": (False, {"codec": "prores", "pix_fmt": "yuv422p10le"}),
    "flv1.flv": (False, {"codec": "flv"}),
}
"""Clips of every codec that the installed FFmpeg encodes in a form that can be packed, and whether pictures can be
left out of them."""


@cache
def moving(number: int) -> np.ndarray:
    """A picture that differs from its neighbours everywhere, in a way that a codec finds by motion."""
    y, x = np.mgrid[:64, :96]
    red = 127 + 120 * np.sin((x + 3 * number) / 7) * np.cos((y - 2 * number) / 5)
    return np.stack([red, (5 * y + 7 * number) % 256, (3 * x + y * number) % 251], -1).astype(np.uint8)


@pytest.fixture(params=sorted(CODECS))
def encoded(request: pytest.FixtureRequest, make_video: Callable[..., Path]) -> tuple[Path, bool]:
    skips, options = CODECS[request.param]
    return make_video(request.param, **{"gop": 40, "picture": moving, **options}), skips


def pixels(picture: Any) -> bytes:
    return bytes(picture.to_ndarray(format="rgb24").tobytes())


def every_picture(path: Path) -> dict[int, bytes]:
    """Every picture of a file by its time, decoded with nothing left out."""
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        found = ((p.pts if p.pts is not None else p.dts, pixels(p)) for p in container.decode(video=0))
        return dict(found)


def read(path: Path, ticks: Sequence[int]) -> tuple[list[bytes], bool]:
    """Pictures as they are read for a pack, and whether others were left out."""
    medium = Medium(kind="video", uri=path.name)
    with open_media(medium, MediaReach.of(str(path.parent))) as file, open_at(file, ticks[0]) as (video, packets):
        skips = can_skip(video)
        reader = PictureReader(video, packets, leaving_out=ticks if skips else None)
        return list(reader.read(ticks, pixels)), skips


def test_pictures_are_those_of_a_full_decode(encoded: tuple[Path, bool]) -> None:
    """Fails when a picture that another refers to is left out, or where its codec cannot leave any out."""
    path, skips = encoded
    every = every_picture(path)
    for first, step in ((0, 8), (1, 7), (5, 3), (2, 1)):
        ticks = sorted(every)[first::step]
        pictures, did_skip = read(path, ticks)
        assert did_skip == skips
        assert pictures == [every[tick] for tick in ticks], f"every {step} from {first}"


def reader_of(path: Path, ticks: Sequence[int], *, leaving_out: Sequence[int] | None) -> PictureReader:
    """A reader after it was asked for pictures."""
    medium = Medium(kind="video", uri=path.name)
    with open_media(medium, MediaReach.of(str(path.parent))) as file, open_at(file, ticks[0]) as (video, packets):
        reader = PictureReader(video, packets, leaving_out=leaving_out)
        list(reader.read(ticks, id))
        return reader


@pytest.mark.parametrize("name", ["h264.mp4", "hevc.mp4", "mpeg4.mp4", "mpeg2.mkv", "mpeg1.mkv"])
def test_pictures_that_nothing_refers_to_are_left_out(make_video: Callable[..., Path], name: str) -> None:
    """Fails when leaving pictures out has no effect, so that the test above compares one way with itself."""
    path = make_video(name, **{"gop": 40, "picture": moving, **CODECS[name][1]})
    every = sorted(every_picture(path))
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.skip_frame = "NONREF"
        kept = {picture.pts for picture in container.decode(video=0)}
    lost = next(tick for tick in every[1:] if tick not in kept)
    asked = [every[0], lost, every[-1]]
    reader_of(path, asked, leaving_out=asked)
    with pytest.raises(LostPictureError, match="later frame"):
        reader_of(path, asked, leaving_out=[every[0], every[-1]])


@pytest.mark.parametrize("name", ["h264.mp4", "hevc.mp4", "mpeg4.mp4", "mpeg2.mkv"])
def test_nothing_is_decoded_after_the_last_wanted_picture_of_a_group(
    make_video: Callable[..., Path], name: str
) -> None:
    """Fails when a decoder that puts pictures in order is fed others until it gives the last one of a group."""
    options = {**CODECS[name][1], "gop": 10}
    if "options" in options:
        options["options"] = {"x265-params": "bframes=3:log-level=none:pools=1:frame-threads=1:keyint=10:min-keyint=10"}
    path = make_video(name, picture=moving, **options)
    with av.open(str(path)) as container:
        order = [packet.pts for packet in container.demux(video=0) if packet.size]
        container.seek(0)
        keys = [packet.pts for packet in container.demux(video=0) if packet.size and packet.is_keyframe]
    every = sorted(order)
    assert len(keys) >= 4
    ticks = [every[every.index(key) + 3] for key in keys[:4]]
    groups = [order.index(tick) - order.index(key) + 1 for tick, key in zip(ticks, keys, strict=False)]
    assert reader_of(path, ticks, leaving_out=ticks).n_fed == sum(groups)
    assert reader_of(path, ticks, leaving_out=None).n_fed > sum(groups)


def test_a_picture_that_was_lost_is_decoded_the_long_way(make_video: Callable[..., Path]) -> None:
    """Fails when a decoder that loses a picture by leaving others out costs a document that can be decoded.

    The clip asks for a time that no picture has, which looks the same: then everything is decoded once more, and the
    message is that of the second time.
    """
    path = make_video("h264.mp4", b_frames=3)
    frames = VideoFrames(pts=np.array([0, 7, 8192]), timestamps=np.array([0.0, 0.1, 0.2]), width=96, height=64)
    images = decode_video(Medium(kind="video", uri=path.name), MediaReach.of(str(path.parent)), frames, size=(8, 8))
    assert next(images).size == (8, 8)
    with pytest.raises(DocumentError, match=r"frame 1 of 3 .* later frame"):
        next(images)
