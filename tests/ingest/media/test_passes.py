"""One pass through a video: gaps are jumped over, clips share pictures, and the pixels are those of each clip alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media import pictures
from preshard.packer_service.ingest.media.crops import Picture, decode_video, encode_image, encoded_pictures
from preshard.packer_service.ingest.media.pictures import SEEK_SECONDS, LostPictureError, read_pictures
from preshard.packer_service.ingest.media.reach import MediaReach, open_media
from preshard.packer_service.ingest.media.shape import VideoFrames
from preshard.schemas.errors import DocumentError

STEP = 200
"""Milliseconds from one picture to the next: a film of 150 pictures is half a minute long."""

TIMES = range(0, 150 * STEP, STEP)

X265 = "bframes=3:log-level=none:pools=1:frame-threads=1:keyint=12:min-keyint=12"
FILMS: dict[str, dict[str, Any]] = {
    "b_frames.mp4": {"b_frames": 3},
    "open_groups.mp4": {"b_frames": 2, "options": {"x264-params": "open-gop=1:keyint=12:bframes=2"}},
    "long_group.mp4": {"b_frames": 2, "gop": 500, "options": {"x264-params": "scenecut=0"}},
    "b_frames.mkv": {"b_frames": 3},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"lag-in-frames": "8", "cpu-used": "8"}},
    "hevc.mp4": {"codec": "libx265", "options": {"x265-params": X265}},
    "mpeg4.avi": {"codec": "mpeg4", "b_frames": 2, "times": range(150), "ticks": 5},
    "b_frames.ts": {"b_frames": 2},
    "palette.mov": {"codec": "qtrle", "pix_fmt": "rgb24"},
}


@cache
def moving(number: int) -> np.ndarray:
    y, x = np.mgrid[:64, :96]
    red = 127 + 120 * np.sin((x + 3 * number) / 7) * np.cos((y - 2 * number) / 5)
    return np.stack([red, (5 * y + 7 * number) % 256, (3 * x + y * number) % 251], -1).astype(np.uint8)


@pytest.fixture(scope="module")
def film(write_video: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A film of half a minute by its name in ``FILMS``. Read only."""
    folder = tmp_path_factory.mktemp("films")

    @cache
    def make(name: str) -> Path:
        return write_video(folder, name, **{"times": TIMES, "picture": moving, **FILMS[name]})

    return make


def every_tick(path: Path) -> list[int]:
    with av.open(str(path)) as container:
        return sorted({p.pts if p.pts is not None else p.dts for p in container.decode(video=0)})


def shown(path: Path, ticks: Sequence[int]) -> list[int]:
    """The times of the pictures that are read for these."""
    with open_media(medium_of(path), MediaReach.of(str(path.parent))) as file:
        return list(read_pictures(file, ticks, lambda picture: int(picture.pts)))


def medium_of(path: Path) -> Medium:
    return Medium(kind="video", uri=path.name)


def alone(path: Path, ticks: Sequence[int], size: tuple[int, int]) -> list[bytes]:
    """Encoded pictures of a clip that is decoded by itself."""
    times = np.array(ticks, np.int64)
    frames = VideoFrames(pts=times, timestamps=times.astype(float), width=96, height=64)
    images = decode_video(medium_of(path), MediaReach.of(str(path.parent)), frames, size=size)
    return [encode_image(image, image_format="png", jpeg_quality=90) for image in images]


CLIPS: list[tuple[slice, tuple[int, int]]] = [
    (slice(0, 12), (28, 28)),
    (slice(4, 30, 5), (28, 28)),
    (slice(5, 20, 4), (42, 28)),
    (slice(100, 140, 7), (28, 28)),
    (slice(149, 150), (28, 28)),
]
"""Pictures of each clip and its size: overlapping, one of another size, and two behind a gap of 14 seconds."""


@pytest.mark.parametrize("name", FILMS)
def test_clips_in_one_pass_have_the_bytes_of_each_alone(film: Callable[[str], Path], name: str) -> None:
    """Fails when a seek or a clip before it changes a picture, or one is decoded for one size and given for another."""
    path = film(name)
    ticks = every_tick(path)
    assert len(ticks) == 150
    clips = [[Picture(tick, size, "reduced") for tick in ticks[chosen]] for chosen, size in CLIPS]
    asked = {picture for clip in clips for picture in clip}
    assert len(asked) < sum(map(len, clips))
    found = list(
        encoded_pictures(medium_of(path), MediaReach.of(str(path.parent)), asked, image_format="png", jpeg_quality=90)
    )
    assert len(found) == len(asked)
    given = dict(found)
    for clip, (chosen, size) in zip(clips, CLIPS, strict=True):
        assert [given[picture] for picture in clip] == alone(path, ticks[chosen], size)


@pytest.mark.parametrize("name", ["b_frames.mp4", "b_frames.mkv"])
def test_a_long_gap_is_not_read(make_video: Callable[..., Path], reads: list[int], name: str) -> None:
    """Fails when the bytes between two clips of a long film are read to get from one to the other."""
    noise = np.random.default_rng(0)
    options: dict[str, Any] = {
        "picture": lambda _: noise.integers(0, 255, (64, 96, 3), np.uint8),
        "options": {"crf": "4"},
    }
    path = make_video(name, times=TIMES, **options)
    ticks = every_tick(path)
    assert path.stat().st_size > 1_000_000
    for asked, is_all in (([*ticks[:3], *ticks[-3:]], False), (ticks[::40], True)):
        reads.clear()
        assert shown(path, asked) == asked
        assert (sum(reads) > path.stat().st_size / 2) == is_all


def test_a_gap_inside_a_group_is_read(film: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when pictures of a group longer than the gap are decoded again from its key frame."""
    opened, sought = list[int](), list[int]()
    original = pictures.seek_to

    def seek_to(video: Any, tick: int, **options: Any) -> Any:
        sought.append(tick)
        return original(video, tick, **options)

    monkeypatch.setattr(pictures, "seek_to", seek_to)
    for name in ("long_group.mp4", "b_frames.mp4"):
        path = film(name)
        ticks = every_tick(path)
        assert shown(path, [ticks[0], ticks[-1]]) == [ticks[0], ticks[-1]]
        opened.append(len(sought))
    assert (ticks[-1] - ticks[0]) / 12800 > SEEK_SECONDS
    assert opened == [0, 1]


def test_pictures_before_a_lost_one_are_given(film: Callable[[str], Path]) -> None:
    """Fails when clips before a broken place of a film are lost with those behind it."""
    path = film("b_frames.mp4")
    ticks = every_tick(path)
    asked = [ticks[0], ticks[40], ticks[40] + 1, ticks[120]]
    given = []
    with (
        open_media(medium_of(path), MediaReach.of(str(path.parent))) as file,
        pytest.raises(LostPictureError, match="later frame"),
    ):
        given.extend(read_pictures(file, asked, lambda picture: picture.pts))
    assert given == asked[:2]
    wanted = [Picture(tick, (28, 28), "reduced") for tick in asked]
    encoded = encoded_pictures(
        medium_of(path), MediaReach.of(str(path.parent)), wanted, image_format="jpeg", jpeg_quality=90
    )
    assert [next(encoded)[0], next(encoded)[0]] == wanted[:2]
    with pytest.raises(DocumentError, match="a frame cannot be decoded"):
        next(encoded)
