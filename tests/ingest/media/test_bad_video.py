"""Videos that cannot be used: each becomes a rejected document with its code, never another error."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media.crops import decode_video
from preshard.packer_service.ingest.media.demux import open_video
from preshard.packer_service.ingest.media.reach import MediaReach, open_media
from preshard.packer_service.ingest.media.shape import VideoFrames, video_bytes
from preshard.packer_service.ingest.media.video import probe_video
from preshard.schemas.errors import DocumentError

EVERY: dict[str, Any] = {"fps": 1000.0, "max_frames": 100_000}


def clip(path: Path, start: float | None = None, end: float | None = None) -> Medium:
    return Medium(kind="video", uri=path.name, start=start, end=end)


def probe(path: Path, start: float | None = None, end: float | None = None, **asked: Any) -> VideoFrames:
    return probe_video(clip(path, start, end), MediaReach.of(str(path.parent)), **{**EVERY, **asked})


def decode(path: Path, frames: VideoFrames) -> list[Any]:
    return list(decode_video(clip(path), MediaReach.of(str(path.parent)), frames, size=(32, 32)))


@pytest.mark.parametrize(
    ("start", "end", "reason"),
    [
        (-0.5, None, "start -0.5 is not a time"),
        (math.nan, None, "start nan is not a time"),
        (None, math.inf, "end inf is not a time"),
        (1.0, 1.0, "start 1.0 is not before end 1.0"),
        (0.9, 0.2, "start 0.9 is not before end 0.2"),
        (1.6, None, "start 1.6 is past the end; the video is 1.600 seconds long"),
        (1e300, None, r"start 1e\+300 is past the end"),
    ],
)
def test_a_clip_outside_of_its_video_is_bad(
    make_video: Callable[..., Path], start: float | None, end: float | None, reason: str
) -> None:
    # Fails when a clip without a frame is packed, or a time that is not a number reaches the arithmetic.
    path = make_video("plain.mp4")
    with pytest.raises(DocumentError, match=reason) as caught:
        probe(path, start, end)
    assert caught.value.code == "bad_video"


def test_what_is_not_a_video_is_bad(tmp_path: Path, make_video: Callable[..., Path]) -> None:
    # Fails when a list of other files is followed, when random bytes or a still image pass for a video, or when a
    # message holds the machine's paths.
    good = make_video("good.mp4")
    raw = make_video("raw.h264", muxer_options={})
    files = {
        "empty.mp4": b"",
        "text.mp4": b"hello " * 5000,
        "random.mp4": np.random.default_rng(1).bytes(100_000),
        "list.m3u8": f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\nfile://{good}\n#EXT-X-ENDLIST\n".encode(),
        "list.mp4": f"ffconcat version 1.0\nfile {good}\n".encode(),
        "raw.mp4": raw.read_bytes(),
        "no_index.mp4": good.read_bytes()[:1500],
    }
    for name, data in files.items():
        (tmp_path / name).write_bytes(data)
        with pytest.raises(DocumentError) as caught:
            probe(tmp_path / name)
        assert caught.value.code == "bad_video", name
        assert str(tmp_path) not in str(caught.value)
    with pytest.raises(DocumentError) as caught:
        probe(tmp_path / "none.mp4")
    assert caught.value.code == "missing_media"


@pytest.mark.parametrize("share", [0.45, 0.6, 0.8, 0.97])
def test_a_truncated_video_whose_index_survived_is_bad(make_video: Callable[..., Path], share: float) -> None:
    # Fails when the frames that are left pass for the whole; a clip that is whole may still be used.
    noise = np.random.default_rng(0).integers(0, 256, (64, 96, 3), dtype=np.uint8)
    path = make_video("fast.mp4", b_frames=2, muxer_options={"movflags": "faststart"},
                      picture=lambda n: np.roll(noise, n, 1))  # fmt: skip
    data = path.read_bytes()
    assert data.index(b"moov") < data.index(b"mdat") < len(data) * 0.2
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(DocumentError, match="truncated") as caught:
        probe(path)
    assert caught.value.code == "bad_video"
    whole = probe(path, 0.0, 0.3)
    assert len(decode(path, whole)) == whole.n_frames == 8


def test_a_truncation_between_two_packets_is_seen(make_video: Callable[..., Path]) -> None:
    # No packet is damaged then: only the index knows what is missing.
    path = make_video("fast.mp4", muxer_options={"movflags": "faststart"})
    with open_media(clip(path), MediaReach.of(str(path.parent))) as file, open_video(file) as video:
        cut = [packet.pos for packet in video.container.demux(video.stream) if packet.size][25]
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(DocumentError, match="index promises"):
        probe(path)


def test_damaged_pixels_fail_to_decode(make_video: Callable[..., Path]) -> None:
    # Fails when the decoder's error escapes, or when fewer pictures come out than were planned.
    path = make_video("damaged.mp4", muxer_options={"movflags": "faststart"})
    frames = probe(path)
    with open_media(clip(path), MediaReach.of(str(path.parent))) as file, open_video(file) as video:
        place = [(packet.pos, packet.size) for packet in video.container.demux(video.stream) if packet.size][12]
    data = bytearray(path.read_bytes())
    data[place[0] : place[0] + place[1]] = b"\xff" * place[1]
    path.write_bytes(data)
    assert probe(path).n_frames == frames.n_frames, "the damage is not in the pixels alone"
    with pytest.raises(DocumentError, match="cannot be decoded") as caught:
        decode(path, frames)
    assert caught.value.code == "decode_failed"


def test_a_time_that_no_frame_has_fails_to_decode(make_video: Callable[..., Path]) -> None:
    # Fails when a neighbour is silently stored in place of the frame that was counted.
    path = make_video("plain.mp4")
    frames = probe(path, fps=2.0)
    moved = VideoFrames(pts=frames.pts + 1, timestamps=frames.timestamps, width=1, height=1)
    with pytest.raises(DocumentError, match="frame 0 of 4") as caught:
        decode(path, moved)
    assert caught.value.code == "decode_failed"


def test_frames_above_the_limit_are_bad(make_video: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    # Fails when a header's size is believed: decoding such a frame would fill a worker's memory.
    path = make_video("plain.mp4")
    monkeypatch.setattr("preshard.packer_service.ingest.media.demux.MAX_FRAME_PIXELS", 96 * 64 - 1)
    with pytest.raises(DocumentError, match="96 x 64 are above the limit of 6143 pixels") as caught:
        probe(path)
    assert caught.value.code == "bad_video"


def test_what_a_decoder_needs_is_known_before(make_video: Callable[..., Path]) -> None:
    # Fails when a video that no decoder of this memory can show is rejected after two tries, without its need.
    path = make_video("large.mp4", size=(1024, 576), n_frames=3)
    pixels, limit = 1024 * 576, 129
    need = -(-video_bytes("h264", pixels, 12, full_size=True) >> 20)
    assert need > limit
    with pytest.raises(DocumentError, match=rf"need about {need} MiB .* decoder_mib {limit}; set decoder_mib to 256"):
        probe(path, full_size=True, decoder_mib=limit)
    assert probe(path, full_size=True, decoder_mib=need).n_frames == 3
    # as measured: 4K fits into 512 MiB, and 8K of 8 and 10 bits does not
    assert video_bytes("hevc", 3840 * 2160, 24, full_size=True) < 512 << 20
    assert 512 << 20 < video_bytes("hevc", 7680 * 4320, 12, full_size=False) <= 602 << 20
    assert 512 << 20 < video_bytes("hevc", 7680 * 4320, 24, full_size=False) <= 888 << 20


def test_a_frame_that_grows_within_its_video_fails_to_decode(
    make_video: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    # Fails when only the container's size is looked at: the codec's own data may name another, and do so later on.
    halves = [make_video(f"{i}.mkv", codec="mjpeg", pix_fmt="yuvj420p", size=(96 << i, 64 << i)) for i in range(2)]
    path = halves[0].with_name("grows.mkv")
    join(halves, path)
    assert len(decode(path, probe(path))) == 80, "the second half cannot be decoded at all"
    monkeypatch.setattr("preshard.packer_service.ingest.media.demux.MAX_FRAME_PIXELS", 2 * 96 * 64)
    frames = probe(path)
    with pytest.raises(DocumentError, match="frame 40 of 80") as caught:
        decode(path, frames)
    assert caught.value.code == "decode_failed"


def join(halves: list[Path], path: Path) -> None:
    """The packets of two videos of 40 frames in one stream, whose header gives the size of the first."""
    with av.open(str(path), "w") as out:
        stream = None
        for number, half in enumerate(halves):
            with av.open(str(half)) as container:
                stream = stream or out.add_stream_from_template(container.streams.video[0])
                for packet in container.demux(video=0):
                    if packet.size:
                        packet.pts, packet.dts = packet.pts + 1600 * number, packet.dts + 1600 * number
                        packet.stream = stream
                        out.mux(packet)


def test_a_place_outside_of_the_file_is_the_files_fault(make_video: Callable[..., Path]) -> None:
    # Fails when a damaged index, by which FFmpeg seeks far away, looks like a failing disk and ends the job.
    path = make_video("plain.nut")
    with open_media(clip(path), MediaReach.of(str(path.parent))) as file:
        with pytest.raises(ValueError, match="before its beginning"):
            file.seek(-1)
        assert file.seek(2**63) == file.size
    data = bytearray(path.read_bytes())
    data[-12] = 255  # the distance from the end to the index
    path.write_bytes(data)
    assert probe(path).n_frames == 40, "the frames themselves are not damaged"
