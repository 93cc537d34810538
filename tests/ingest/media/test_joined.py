"""Videos whose times go back or leap: one line of time, with every picture that PyAV decodes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media import demux
from preshard.packer_service.ingest.media.crops import decode_video
from preshard.packer_service.ingest.media.line import UNBROKEN
from preshard.packer_service.ingest.media.reach import MediaReach, open_media
from preshard.packer_service.ingest.media.shape import VideoFrames
from preshard.packer_service.ingest.media.video import probe_video

FRAMES, SECONDS = 40, 1.6
SIZE = (96, 64)

PARTS: dict[str, dict[str, Any]] = {
    "plain.ts": {},
    "b_frames.ts": {"b_frames": 2},
    "mpeg2.ts": {"codec": "mpeg2video", "times": range(40), "ticks": 25, "b_frames": 2},
    "mpeg2.mpg": {"codec": "mpeg2video", "times": range(40), "ticks": 25, "b_frames": 2},
    "mpeg1.mpg": {"codec": "mpeg1video", "times": range(40), "ticks": 25},
    "mpeg2.vob": {"codec": "mpeg2video", "times": range(40), "ticks": 25, "b_frames": 2},
    "plain.mkv": {},
    "b_frames.mkv": {"b_frames": 3},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"cpu-used": "8"}},
}


@pytest.fixture(autouse=True)
def _nothing_known() -> None:
    UNBROKEN.clear()


def pictures(count: int, seed: int) -> list[np.ndarray]:
    """Pictures that none is like another, and that compress well."""
    noise = np.random.default_rng(seed).integers(0, 256, (count, 4, 6, 3), dtype=np.uint8)
    return [np.kron(small, np.ones((16, 16, 1), np.uint8)) for small in noise]


@pytest.fixture(scope="module", params=sorted(PARTS))
def joined(
    request: pytest.FixtureRequest, write_video: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Three parts of 40, 40 and 60 frames, each of whose times begin anew."""
    folder, made = tmp_path_factory.mktemp("joined"), PARTS[request.param]
    data = b""
    for number, count in enumerate((FRAMES, FRAMES, 60)):
        drawn = pictures(count, number)
        given = {**made, "n_frames": count}
        if "times" in made:
            given["times"] = range(count)
        data += write_video(folder, f"{number}.{request.param}", picture=drawn.__getitem__, **given).read_bytes()
    path = folder / request.param
    path.write_bytes(data)
    return path


def clip(path: Path, start: float | None = None, end: float | None = None) -> Medium:
    return Medium(kind="video", uri=path.name, start=start, end=end)


def probe(path: Path, start: float | None = None, end: float | None = None, fps: float = 1000.0) -> VideoFrames:
    base = MediaReach.of(str(path.parent))
    return probe_video(clip(path, start, end), base, fps=fps, max_frames=100_000)


def decode(path: Path, frames: VideoFrames) -> list[np.ndarray]:
    images = decode_video(clip(path), MediaReach.of(str(path.parent)), frames, size=SIZE, scaling="bicubic")
    return [np.asarray(image) for image in images]


def test_every_picture_is_on_one_line(joined: Path) -> None:
    # Fails when frames of two parts that are shown at one time are one frame, or only those of one part are found.
    with av.open(str(joined)) as container:
        raw = [(frame.pts, frame.to_ndarray(format="rgb24")) for frame in container.decode(video=0)]
    assert len(raw) == 2 * FRAMES + (0 if joined.suffix in (".mkv", ".webm") else 60), "FFmpeg reads two of Matroska"
    assert len({pts for pts, _ in raw}) <= 62, "the parts have times of their own"
    frames = probe(joined)
    assert frames.n_frames == len(raw)
    steps = np.diff(frames.timestamps)  # FFmpeg leaves out two places of a VOB
    assert 0.038 < steps.min() <= steps.max() < 0.13
    assert np.median(steps) == pytest.approx(0.04, abs=0.001)
    assert all((a == b).all() for a, (_, b) in zip(decode(joined, frames), raw, strict=True))
    assert probe(joined, fps=5.0).n_frames == pytest.approx(len(raw) / 5, abs=1)


@pytest.mark.parametrize(("start", "end"), [(0.2, 0.5), (1.4, 1.9), (1.7, 2.6), (2.1, None), (2.8, 4.0), (3.1, 3.3)])
@pytest.mark.parametrize("is_known", [False, True])
def test_a_clip_is_the_same_part_of_the_whole(joined: Path, start: float, end: float | None, is_known: bool) -> None:
    # Fails when a seek by time lands in another part, or a clip is counted from the beginning of its own part.
    whole = probe(joined)
    if not is_known:
        UNBROKEN.clear()
    first = int(np.searchsorted(whole.timestamps, start + 1e-6, side="right")) - 1
    last = whole.n_frames if end is None else int(np.searchsorted(whole.timestamps, end - 1e-6, side="left"))
    part = probe(joined, start, end)
    assert list(part.pts) == list(whole.pts[first:last])
    pixels = decode(joined, part)
    if not is_known:
        UNBROKEN.clear()
    expected = decode(joined, whole)[first:last]
    assert all((a == b).all() for a, b in zip(pixels, expected, strict=True))


@pytest.mark.parametrize("name", ["mpeg2.vob", "mpeg2.mpg"])
def test_estimated_times_lose_no_picture(write_video: Callable[..., Path], tmp_path: Path, name: str) -> None:
    # Fails when pictures of a program stream that is whole vanish, for which FFmpeg gives the times of others.
    made = {**PARTS[name], "times": range(200)}
    path = write_video(tmp_path, name, picture=pictures(200, 2).__getitem__, **made)
    with av.open(str(path)) as container:
        raw = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    with av.open(str(path)) as container:
        assert len({packet.pts for packet in container.demux(video=0) if packet.size}) < 200 == len(raw)
    frames = probe(path)
    assert frames.n_frames == 200
    assert all((a == b).all() for a, b in zip(decode(path, frames), raw, strict=True))


def test_a_leap_is_closed(write_video: Callable[..., Path], tmp_path: Path) -> None:
    # Fails when a recorder's pause of hours, or the end of 33 bits of time, makes a clip of two frames of a recording;
    # in a container that keeps order, a still picture of 20 s stays one.
    first = write_video(tmp_path, "first.ts", times=range(100_000, 100_400, 40))
    second = write_video(tmp_path, "second.ts", times=range(0, 400, 40))
    path = tmp_path / "both.ts"
    path.write_bytes(first.read_bytes() + second.read_bytes())
    with av.open(str(path)) as container:
        raw = [packet.pts for packet in container.demux(video=0) if packet.size]
    assert max(np.abs(np.diff(raw))) > 60 * 90_000, "no leap"
    frames = probe(path, fps=5.0)
    assert frames.n_frames == 4
    assert frames.timestamps[-1] == pytest.approx(0.6, abs=0.03)
    still = write_video(tmp_path, "still.mkv", times=[0, 40, 20_000, 20_040])
    assert probe(still).timestamps.tolist() == [0, 0.04, 20, 20.04]


def test_a_recording_that_runs_on_is_sought(write_video: Callable[..., Path], tmp_path: Path) -> None:
    # Fails when each clip of a long recording is found by reading all that is before it.
    path, tick = write_video(tmp_path, "long.ts", n_frames=300, gop=25), 9 * 90_000
    landed = []
    for start in (8.0, 10.0, None):
        with open_media(clip(path), MediaReach.of(str(path.parent))) as file, demux.open_at(file, tick) as (_, packets):
            landed.append(next(packets).pts / 90_000)
        if start is not None:
            assert probe(path, start, start + 0.4).n_frames == 10
    assert landed[0] == 0
    assert 6 <= landed[1] <= 8.6, "up to where it was read"
    assert 7.5 <= landed[2] <= 9


SHORT_FIRST: dict[str, dict[str, Any]] = {
    "one_key_frame.mkv": {},
    "late.mkv": {"b_frames": 2},
    "vp9.webm": {"codec": "libvpx-vp9", "options": {"cpu-used": "8"}},
    "live.mkv": {"b_frames": 2, "muxer_options": {"live": "1"}},
    "fragments.mp4": {"gop": 4, "muxer_options": {"movflags": "frag_keyframe+empty_moov+default_base_moof"}},
    "plain.gif": {"codec": "gif", "pix_fmt": "rgb8", "ticks": 100},
}


@pytest.mark.parametrize("name", sorted(SHORT_FIRST))
def test_a_short_part_before_a_long_one(write_video: Callable[..., Path], tmp_path: Path, name: str) -> None:
    # Fails when a part of one key frame, of which no time is later than those of the next part, is not told from it, or
    # a clip of the second part is of the first, or ends where FFmpeg's own decoding times lag behind.
    made, data, unit = SHORT_FIRST[name], b"", 4 if name.endswith(".gif") else 40
    for number, count in enumerate((6, 17)):
        first = 4000 if name.startswith("late") and number == 0 else 0
        given = {**made, "picture": pictures(count, number).__getitem__}
        times = [first + unit * i for i in range(count)]
        data += write_video(tmp_path, f"{number}.{name}", times=times, **given).read_bytes()
    path = tmp_path / name
    path.write_bytes(data)
    with av.open(str(path)) as container:
        raw = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    frames = probe(path)
    assert frames.n_frames == len(raw)
    assert all((a == b).all() for a, b in zip(decode(path, frames), raw, strict=True))
    assert len(raw) > 12
    if not name.startswith("fragments"):  # FFmpeg leaves out those that lie before the end of the first part
        assert np.diff(frames.timestamps) == pytest.approx([0.04] * 22)
    for first, last in ((2, 5), (4, 9), (7, 8), (11, None)):
        ends = [frames.timestamps[first], None if last is None else frames.timestamps[last]]
        UNBROKEN.clear()
        part = probe(path, *ends)
        assert part.pts.tolist() == frames.pts[first:last].tolist()
        assert all((a == b).all() for a, b in zip(decode(path, part), raw[first:last], strict=True))
