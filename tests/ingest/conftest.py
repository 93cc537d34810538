"""Small videos, encoded for each test or for those of a module."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path

import av
import numpy as np
import pytest

from preshard.packer_service.ingest.media.reach import MediaFile

MakeVideo = Callable[..., Path]


@pytest.fixture
def make_video(tmp_path: Path, write_video: MakeVideo) -> MakeVideo:
    """``write_video`` into the test's own folder."""
    return partial(write_video, tmp_path)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Gets the bytes of each read of an image or video."""
    found, read = list[int](), MediaFile.read

    def counted(file: MediaFile, size: int = -1) -> bytes:
        data = read(file, size)
        found.append(len(data))
        return data

    monkeypatch.setattr(MediaFile, "read", counted)
    return found


@pytest.fixture(scope="session")
def write_video() -> MakeVideo:
    """A function that encodes a video in which each frame has its own brightness.

    ``times`` are the frames' times in milliseconds (in frames for AVI), by default 40 apart.
    """

    def make(
        folder: Path,
        name: str,
        *,
        times: Sequence[int] | None = None,
        n_frames: int = 40,
        size: tuple[int, int] = (96, 64),
        codec: str = "libx264",
        pix_fmt: str = "yuv420p",
        b_frames: int = 0,
        gop: int = 12,
        turn: int = 0,
        options: dict[str, str] | None = None,
        muxer_options: dict[str, str] | None = None,
        ticks: int = 1000,
        picture: Callable[[int], np.ndarray] | None = None,
    ) -> Path:
        path = folder / name
        times = [40 * i for i in range(n_frames)] if times is None else times
        with av.open(str(path), "w", options=muxer_options or {}) as container:
            stream = container.add_stream(codec, rate=25, options={"threads": "1", **(options or {})})
            stream.width, stream.height = size
            stream.pix_fmt = pix_fmt
            stream.codec_context.time_base = Fraction(1, ticks)
            stream.codec_context.gop_size = gop
            stream.codec_context.max_b_frames = b_frames
            if turn:
                stream.set_display_rotation(turn)
            for number, tick in enumerate(times):
                flat = np.full((size[1], size[0], 3), (20 + 5 * number) % 256, np.uint8)
                pixels = flat if picture is None else picture(number)
                given = "rgba" if pixels.shape[-1] == 4 else "rgb24"
                frame = av.VideoFrame.from_ndarray(pixels, format=given).reformat(format=pix_fmt)
                frame.pts, frame.time_base = int(tick), Fraction(1, ticks)
                container.mux(stream.encode(frame))
            container.mux(stream.encode(None))
        return path

    return make
