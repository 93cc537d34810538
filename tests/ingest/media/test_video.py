"""Videos: what the probe predicts from packets is what a full decode gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media.crops import decode_video
from preshard.packer_service.ingest.media.demux import open_at
from preshard.packer_service.ingest.media.pictures import PictureReader
from preshard.packer_service.ingest.media.reach import MediaReach, open_media
from preshard.packer_service.ingest.media.shape import VideoFrames
from preshard.packer_service.ingest.media.video import probe_video

EVERY: dict[str, Any] = {"fps": 1000.0, "max_frames": 100_000}


def clip(path: Path, start: float | None = None, end: float | None = None) -> Medium:
    return Medium(kind="video", uri=path.name, start=start, end=end)


def probe(path: Path, start: float | None = None, end: float | None = None, **asked: Any) -> VideoFrames:
    return probe_video(clip(path, start, end), MediaReach.of(str(path.parent)), **{**EVERY, **asked})


def decode(path: Path, frames: VideoFrames, size: int = 32) -> list[np.ndarray]:
    images = decode_video(clip(path), MediaReach.of(str(path.parent)), frames, size=(size, size))
    return [np.asarray(image).astype(int) for image in images]


def decoded_times(path: Path) -> list[int]:
    """Times of all frames that FFmpeg returns when it decodes the whole file."""
    with av.open(str(path)) as container:
        return sorted(frame.pts for frame in container.decode(video=0))


VARIETY: dict[str, dict[str, Any]] = {
    "plain.mp4": {},
    "b_frames.mp4": {"b_frames": 3},
    "b_frames.mkv": {"b_frames": 3},
    "b_frames.ts": {"b_frames": 2},
    "open_groups.mp4": {"b_frames": 2, "options": {"x264-params": "open-gop=1:keyint=12:bframes=2"}},
    "hevc_open.mp4": {"codec": "libx265", "options": {"x265-params": "open-gop=1:keyint=12:bframes=3:log-level=none"}},
    "edit_list.mp4": {"times": range(-400, 1200, 40), "b_frames": 2},
    "late.mp4": {"times": range(5000, 6600, 40), "b_frames": 2},
    "late.mkv": {"times": range(5000, 6600, 40)},
    "uneven.mkv": {"times": np.cumsum([1 + 37 * (i * i % 11) for i in range(40)])},
    "uneven.mp4": {"times": np.cumsum([1 + 37 * (i * i % 11) for i in range(40)]), "b_frames": 2},
    "hidden.webm": {"codec": "libvpx", "options": {"auto-alt-ref": "1", "lag-in-frames": "16"}, "gop": 60},
    "super.webm": {"codec": "libvpx-vp9", "options": {"auto-alt-ref": "1", "lag-in-frames": "16", "cpu-used": "8"}},
    "mpeg4.avi": {"codec": "mpeg4", "times": range(40), "ticks": 25},
    "mpeg4_b.avi": {"codec": "mpeg4", "times": range(40), "ticks": 25, "b_frames": 2},
    "mpeg2.mpg": {"codec": "mpeg2video", "times": range(40), "ticks": 25, "b_frames": 2},
    "moving.gif": {"codec": "gif", "pix_fmt": "rgb8", "n_frames": 12},
}


@pytest.fixture(scope="module", params=sorted(VARIETY))
def varied(
    request: pytest.FixtureRequest, write_video: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    return write_video(tmp_path_factory.mktemp("varied"), request.param, **VARIETY[request.param])


@pytest.fixture(scope="module")
def whole(varied: Path) -> VideoFrames:
    """All frames of the video."""
    return probe(varied)


@pytest.fixture(scope="module")
def pixels(varied: Path, whole: VideoFrames) -> list[np.ndarray]:
    """All frames of the video, decoded."""
    return decode(varied, whole)


def test_the_probe_foretells_a_full_decode(varied: Path, whole: VideoFrames, pixels: list[np.ndarray]) -> None:
    # Fails when reordered, unshown, discarded or late frames are counted wrongly for any kind of container.
    times = decoded_times(varied)
    assert len(whole.pts) == len(times)
    if varied.suffix != ".mpg":  # FFmpeg gives two pictures the times of others
        assert [int(tick) for tick in whole.pts] == times
    assert whole.timestamps[0] == 0
    assert len(pixels) == whole.n_frames


@pytest.mark.parametrize(("start", "end"), [(0.0, 0.3), (0.21, 0.25), (0.2, 0.38), (0.3, None), (0.25, 99.0)])
def test_a_clip_is_the_same_part_of_the_whole(
    varied: Path, whole: VideoFrames, pixels: list[np.ndarray], start: float, end: float | None
) -> None:
    # Fails when a seek lands behind the frame on the screen at the start, or reading stops before reordered frames.
    first = int(np.searchsorted(whole.timestamps, start, side="right")) - 1
    last = whole.n_frames if end is None else int(np.searchsorted(whole.timestamps, end, side="left"))
    part = probe(varied, start, end)
    assert list(part.pts) == list(whole.pts[first:last])
    expected = np.maximum(whole.timestamps[first:last] - start, 0)
    np.testing.assert_allclose(part.timestamps, expected, atol=1e-9)
    assert all((a == b).all() for a, b in zip(decode(varied, part), pixels[first:last], strict=True))


def test_frames_taken_far_apart_are_those_of_a_full_decode(
    varied: Path, whole: VideoFrames, pixels: list[np.ndarray]
) -> None:
    # Fails when leaving out packets before a key frame changes a picture, or loses one.
    taken = np.arange(1, whole.n_frames, 7)
    sparse = VideoFrames(pts=whole.pts[taken], timestamps=whole.timestamps[taken], width=1, height=1)
    assert all((a == pixels[i]).all() for a, i in zip(decode(varied, sparse), taken, strict=True))


def test_variety_is_there(make_video: Callable[..., Path]) -> None:
    # The cases above mean nothing if the encoder made no reordered, discarded, late or open-group packets.
    def packets(name: str) -> list[Any]:
        with av.open(str(make_video(name, **VARIETY[name]))) as container:
            return [packet for packet in container.demux(video=0) if packet.size]

    def reordered(name: str) -> bool:
        ticks = [packet.pts for packet in packets(name)]
        return ticks != sorted(ticks)

    assert all(reordered(name) for name in ("b_frames.mp4", "b_frames.mkv", "b_frames.ts", "edit_list.mp4"))
    assert sum(packet.is_discard for packet in packets("edit_list.mp4")) == 10
    assert packets("late.mp4")[0].pts > 0
    key = [p for p in packets("open_groups.mp4") if p.is_keyframe][1].pts
    after = [p.pts for p in packets("open_groups.mp4")]
    assert min(after[after.index(key) :]) < key, "no picture leads an open group"


def fed(path: Path, frames: VideoFrames) -> int:
    """Packets that a decoder is given for these frames."""
    medium, ticks = clip(path), frames.pts.tolist()
    with open_media(medium, MediaReach.of(str(path.parent))) as file, open_at(file, ticks[0]) as (video, packets):
        reader = PictureReader(video, packets, leaving_out=None)
        assert len(list(reader.read(ticks, id))) == len(ticks)
        return reader.n_fed


def test_only_wanted_groups_are_decoded(make_video: Callable[..., Path]) -> None:
    # Fails when a few frames of a long video cost the decoding of all of it.
    path = make_video("long.mp4", n_frames=240, gop=12)
    assert len(decode(path, probe(path, fps=1.0))) == 10
    assert fed(path, probe(path, fps=0.3)) < 60


def test_nothing_is_decoded_by_the_probe(make_video: Callable[..., Path]) -> None:
    # Fails when probing costs a decode: every picture of this video that refers to another is
    # overwritten, and no decoder gets past the first.
    path = make_video("plain.mp4", b_frames=2)
    before = [probe(path), probe(path, 0.5, 1.0)]
    with av.open(str(path)) as container:
        places = [(packet.pos, packet.size) for packet in container.demux(video=0) if not packet.is_keyframe]
    data = bytearray(path.read_bytes())
    for position, size in places[:-1]:
        data[position : position + size] = b"\xff" * size
    path.write_bytes(data)
    with av.open(str(path)) as container, pytest.raises(av.FFmpegError):
        list(container.decode(video=0))
    for expected, frames in zip(before, [probe(path), probe(path, 0.5, 1.0)], strict=True):
        assert list(frames.pts) == list(expected.pts)
        assert (frames.width, frames.height) == (96, 64)


def test_a_short_clip_reads_a_small_part_of_a_long_file(make_video: Callable[..., Path], reads: list[int]) -> None:
    # Fails when a clip of a long video is probed by reading all of it.
    rng = np.random.default_rng(0)
    path = make_video(
        "long.mp4",
        n_frames=200,
        size=(128, 96),
        gop=25,
        options={"crf": "12", "preset": "ultrafast"},
        muxer_options={"movflags": "faststart"},
        picture=lambda _: rng.integers(0, 256, (96, 128, 3), dtype=np.uint8),
    )
    assert probe(path, 4.0, 4.5).n_frames == 13
    assert path.stat().st_size > 2_000_000
    assert 0 < sum(reads) < path.stat().st_size / 2


@pytest.mark.parametrize("turn", [0, 90, 180, -90])
def test_a_turned_video_is_upright(make_video: Callable[..., Path], turn: int) -> None:
    # Fails when the header's rotation is left out of the size, or applied the wrong way round.
    corner = np.zeros((64, 96, 3), np.uint8)
    corner[:32, :48] = (255, 0, 0)
    path = make_video("turned.mp4", n_frames=3, turn=turn, picture=lambda _: corner)
    frames = probe(path)
    assert (frames.width, frames.height) == ((64, 96) if turn % 180 else (96, 64))
    upright = np.rot90(corner, turn // 90)
    red = decode(path, frames, 64)[0][..., 0]
    height, width = upright.shape[0] // 4, upright.shape[1] // 4
    quarters = [red[16, 16], red[16, 48], red[48, 16], red[48, 48]]
    marks = [upright[y * height, x * width, 0] for y in (1, 3) for x in (1, 3)]
    np.testing.assert_allclose(quarters, marks, atol=12)
    assert sorted(int(mark) for mark in marks) == [0, 0, 0, 255]


CODECS = {"rgb24": "libx264rgb", "yuvj420p": "mjpeg", "gray16le": "ffv1", "gbrp16le": "ffv1", "rgba": "png"}
"""Codecs of pixel formats that H.264 does not have."""


@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv444p", "yuv422p10le", "gray", "nv12", *CODECS])
def test_colours_survive_every_pixel_format(make_video: Callable[..., Path], pix_fmt: str) -> None:
    # Fails when a format's range, depth or planes are misread: colours then shift by more than rounding. An alpha plane
    # hides nothing, as in players.
    patches = np.zeros((64, 96, 4 if pix_fmt == "rgba" else 3), np.uint8)
    for i, colour in enumerate([(255, 255, 255), (200, 40, 40), (40, 160, 60), (30, 50, 190)]):
        patches[:, 24 * i : 24 * (i + 1), :3] = colour
    codec = CODECS.get(pix_fmt, "libx264")
    name = "colours.mov" if codec == "png" else "colours.mkv"
    path = make_video(name, n_frames=2, codec=codec, pix_fmt=pix_fmt, picture=lambda _: patches,
                      options={"crf": "0"} if codec == "libx264" else {})  # fmt: skip
    got = decode(path, probe(path), 96)[0][48, 12::24]
    expected = patches[0, 12::24, :3].astype(int)
    if pix_fmt.startswith("gray"):
        expected = np.repeat((expected @ [0.299, 0.587, 0.114])[:, None], 3, 1)
    np.testing.assert_allclose(got, expected, atol=14)


@pytest.mark.parametrize("pix_fmt", ["yuv420p", "yuv422p10le", "yuvj420p", "rgb24"])
@pytest.mark.parametrize("size", [(96, 64), (77, 45)])
def test_frames_of_a_model_are_those_that_pyav_converts(
    make_video: Callable[..., Path], pix_fmt: str, size: tuple[int, int]
) -> None:
    # Fails when a model is shown other colours in training than transformers shows it: these readers convert frames so.
    noise = np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    size = (size[0] // 2 * 2, size[1] // 2 * 2) if "42" in pix_fmt else size
    path = make_video("noise.mkv", n_frames=2, pix_fmt=pix_fmt, size=size, codec=CODECS.get(pix_fmt, "libx264"),
                      picture=lambda _: noise[: size[1], : size[0]])  # fmt: skip
    medium, base = clip(path), MediaReach.of(str(path.parent))
    found = [np.asarray(image) for image in decode_video(medium, base, probe(path), size=size, scaling="bicubic")]
    with av.open(str(path)) as container:
        expected = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    np.testing.assert_array_equal(found, expected)


def test_a_video_that_max_frames_thins_says_so(make_video: Callable[..., Path]) -> None:
    # Fails when a long film loses most of its frames and nothing says so.
    path = make_video("long.mkv", n_frames=40)  # 1.6 s
    assert probe(path, fps=2.0).thinned_to is None
    assert probe(path, fps=2.0, max_frames=4).thinned_to is None, "as many as there are"
    assert probe(path, fps=2.0, max_frames=2).thinned_to == pytest.approx(0.8)


def test_odd_sizes(make_video: Callable[..., Path]) -> None:
    # Fails when a padded line of an odd width shifts the picture.
    path = make_video("odd.mkv", size=(77, 45), pix_fmt="yuv444p", n_frames=2)
    frames = probe(path)
    assert (frames.width, frames.height) == (77, 45)
    assert decode(path, frames, 33)[0].shape == (33, 33, 3)
    assert np.ptp(decode(path, frames, 33)[0]) <= 2


def test_the_pixels_do_not_depend_on_threads_or_runs(make_video: Callable[..., Path]) -> None:
    # Fails when scaling is left to as many threads as there are CPUs, or to rounding that is not bit-exact: then the
    # mean of a grey ramp is more than one level too dark.
    ramp = np.repeat(np.linspace(0, 255, 96).astype(np.uint8)[None, :, None], 64, 0).repeat(3, -1)
    path = make_video("ramp.mkv", n_frames=2, pix_fmt="yuv444p", options={"crf": "0"}, picture=lambda _: ramp)
    first, again = decode(path, probe(path), 48), decode(path, probe(path), 48)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    assert abs(first[0].mean() - ramp.mean()) < 0.3
