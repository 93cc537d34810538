"""Read a video's packets from a key frame on, and its time line from them, without decoding a pixel."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from threading import Lock
from typing import Any

import av
import av.logging
import numpy as np
from jaxtyping import Int64

from packer_service.ingest.media import MediaFile
from schemas.errors import DocumentError

MAX_FRAME_PIXELS = 64 << 20
"""Largest frame: more than 8K (7680 x 4320), less than what would fill a worker's memory."""

SEEK_BACK_SECONDS = (0, 2, 16)
"""How far before the wanted time a seek aims, one after the other, until it lands at or before it."""

# Containers that keep times. Not: lists that name other files or addresses to open (HLS, DASH, concat), still images,
# and raw streams, which FFmpeg would also see in random bytes.
_CONTAINERS = "mov,matroska,avi,mpegts,mpeg,flv,asf,ogg,gif,apng,mxf,nut,rm,ivf,wtv"
_OPEN_OPTIONS = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "none"}
_ROTATION = re.compile(r"display ?matrix: rotation of (-?\d+(?:\.\d+)?) degrees", re.IGNORECASE)
_log_lock = Lock()


@dataclass(frozen=True, kw_only=True, slots=True)
class Video:
    """An open container and its first real video stream, from which packets can be read."""

    container: Any
    stream: Any
    label: str

    @property
    def time_base(self) -> Fraction:
        return Fraction(self.stream.time_base)

    def bad(self, reason: str) -> DocumentError:
        return DocumentError("bad_video", f"{self.label}: {reason}")


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """When frames are shown: ``pts`` ascending and distinct; ``origin`` is the video's first frame.

    ``end`` is the tick at which the last frame goes off the screen when packets were read to the file's end, else None.
    """

    pts: Int64[np.ndarray, "shown"]
    origin: int
    end: int | None


@contextmanager
def open_video(file: MediaFile) -> Iterator[Video]:
    """Open a container by its content (never by its name) and check its header.

    Raises:
        DocumentError: ``bad_video``: no container, no video stream, or frames that are empty or too
            large.
    """
    if not file.size:
        raise DocumentError("bad_video", f"{file.label}: the file is empty")
    try:
        container = av.open(file, options=_OPEN_OPTIONS, metadata_errors="replace", buffer_size=1 << 17)
    except av.FFmpegError as error:
        reason = "not a video that can be read; legal are mp4, mov, mkv, webm, avi, mpeg and other timed containers"
        raise DocumentError("bad_video", f"{file.label}: {reason}") from error
    with container:
        video = Video(container=container, stream=_first_stream(container, file.label), label=file.label)
        _check_size(video)
        yield video


def _first_stream(container: Any, label: str) -> Any:
    """The first video stream that is not a cover picture; every other stream is left unread."""
    streams = [s for s in container.streams.video if not s.disposition & av.stream.Disposition.attached_pic]
    if not streams:
        raise DocumentError("bad_video", f"{label}: holds no video stream")
    for other in container.streams:
        if other.index != streams[0].index:
            other.discard = av.stream.Discard.all
    return streams[0]


def _check_size(video: Video) -> None:
    if video.stream.codec_context is None:
        raise video.bad("its codec is unknown to FFmpeg; convert it")
    width, height = video.stream.codec_context.width, video.stream.codec_context.height
    if width < 1 or height < 1:
        raise video.bad("its header gives no frame size; the file is damaged")
    if width * height > MAX_FRAME_PIXELS:
        raise video.bad(f"frames of {width} x {height} are above the limit of {MAX_FRAME_PIXELS} pixels; scale it down")


def display_size(video: Video) -> tuple[int, int]:
    """Width and height of a frame as it is shown: a quarter turn in the header swaps them."""
    width, height = video.stream.codec_context.width, video.stream.codec_context.height
    return (height, width) if round(_rotation(video) / 90) % 2 else (width, height)


def _rotation(video: Video) -> float:
    # PyAV gives a stream's display matrix only with decoded frames; FFmpeg's own description of the file has it. PyAV
    # hands descriptions out by the log, whose level is one for the whole process.
    with _log_lock:
        level = av.logging.get_level()
        av.logging.set_level(av.logging.INFO)
        try:
            text = video.container.dumps_format()
        finally:
            av.logging.set_level(level)
    own = re.split(r"Stream #\d+:(?=\d)", text)[1:]
    found = _ROTATION.search(own[video.stream.index]) if video.stream.index < len(own) else None
    return float(found.group(1)) if found else 0.0


def shown_at(packet: Any) -> int | None:
    """Tick at which a packet's frame is shown; containers without presentation times have decoding times alone."""
    return packet.pts if packet.pts is not None else packet.dts


@contextmanager
def open_at(file: MediaFile, tick: int | None) -> Iterator[tuple[Video, Iterator[Any]]]:
    """A video and its packets in decoding order, from a key frame that is shown at or before ``tick``.

    ``None`` reads from the beginning. Demuxers seek by decoding time, or guess, so where a seek landed is looked at,
    and an earlier place is tried until it is right: first by seeking further back, at last from the file's beginning.
    Each try opens the container anew, because a demuxer that failed to seek is in no defined state.

    Raises:
        DocumentError: ``bad_video``, as of :func:`open_video`.
    """
    for back in (*(SEEK_BACK_SECONDS if tick is not None else ()), None):
        file.seek(0)
        with open_video(file) as video:
            packets = _from_key(video) if tick is None or back is None else seek_to(video, tick, back=back)
            if packets is not None:
                yield video, packets
                return


def seek_to(video: Video, tick: int, *, back: int = 0) -> Iterator[Any] | None:
    """Packets from a key frame at or before ``tick``; None when a seek to ``back`` seconds before it did not land
    there."""
    try:
        video.container.seek(int(tick - back / video.time_base), stream=video.stream)
        packets = _from_key(video)
        first = next(packets, None)
    except (av.FFmpegError, OverflowError):  # a time beyond 64 bits is past every end
        return None
    if first is None or (shown_at(first) or 0) > tick:
        return None
    return chain((first,), packets)


def _from_key(video: Video) -> Iterator[Any]:
    """Packets with content, from the first key frame on: what lies before it cannot be decoded."""
    started = False
    for packet in video.container.demux(video.stream):
        started = started or (packet.is_keyframe and packet.size > 0)
        if started and packet.size:
            yield packet


def read_origin(video: Video, packets: Iterator[Any]) -> tuple[int, list[Any]]:
    """Tick of the video's first frame, and the packets that had to be read from the beginning to know it."""
    head: list[Any] = []
    first: int | None = None
    shown = ShownFrames(video)
    with reading(video):
        for packet in packets:
            head.append(packet)
            tick = shown.add(packet)
            first = tick if first is None else min(first, first if tick is None else tick)
            if first is not None and packet.dts is not None and packet.dts >= first:
                break
    if first is None:
        raise video.bad("holds no frame that can be shown")
    return first, head


def read_timeline(video: Video, packets: Iterator[Any], *, origin: int, stop: int | None) -> Timeline:
    """When frames are shown, from the packets alone, up to the first that is decoded at ``stop`` or later.

    Raises:
        DocumentError: ``bad_video``: a packet is damaged or has no time, no frame is shown, or the file ends before the
            last packet that its index promises.
    """
    shown = ShownFrames(video)
    with reading(video):
        for packet in packets:
            if stop is not None and packet.dts is not None and packet.dts >= stop:
                break
            shown.add(packet)
        else:
            shown.check_index()
            return Timeline(pts=shown.pts(), origin=origin, end=shown.end())
    return Timeline(pts=shown.pts(), origin=origin, end=None)


@contextmanager
def reading(video: Video) -> Iterator[None]:
    """A container that cannot be read on is a bad video."""
    try:
        yield
    except av.FFmpegError as error:
        raise video.bad(f"cannot be read to the end of the clip ({error.strerror})") from error


class ShownFrames:
    """The frames that a decoder will put out for a run of packets that begins with a key frame."""

    def __init__(self, video: Video) -> None:
        self.video = video
        self.ticks: list[int] = []
        self.first_key: int | None = None
        self.last_read: int | None = None
        self.duration = 0
        # VP8 alone puts frames that are only referred to into packets of their own (RFC 6386, section 9.1: show_frame).
        self.hidden_frames = video.stream.codec_context.name in ("vp8", "libvpx")

    def add(self, packet: Any) -> int | None:
        """Take a packet; returns the tick at which its frame is shown, None for one that is not shown."""
        if packet.is_corrupt:
            raise self.video.bad("a packet within the clip is cut short or damaged; the file is truncated")
        tick = shown_at(packet)
        if tick is None:
            raise self.video.bad("its packets carry no times (a raw stream); put it into an mp4 or mkv file")
        if self.first_key is None:
            self.first_key = tick
        self.last_read = max(tick, packet.dts or tick, self.last_read or tick)
        if not self._is_shown(packet, tick):
            return None
        if not self.ticks or tick >= max(self.ticks[-1], self.last_read):
            self.duration = packet.duration or 0
        self.ticks.append(tick)
        return tick

    def _is_shown(self, packet: Any, tick: int) -> bool:
        # A picture before the first key frame refers to frames that were not read (an open group of pictures), and one
        # that is marked lies outside of the container's edit list.
        if packet.is_discard or (self.first_key is not None and tick < self.first_key):
            return False
        return not self.hidden_frames or bool(bytes(packet)[0] >> 4 & 1)

    def check_index(self) -> None:
        """After the last packet: the index must promise no more."""
        entries = self.video.stream.index_entries
        if len(entries) and (self.last_read is None or entries[-1].timestamp > self.last_read):
            raise self.video.bad("ends before the last frame that its index promises; the file is truncated")

    def pts(self) -> Int64[np.ndarray, "shown"]:
        if not self.ticks:
            raise self.video.bad("holds no frame that can be shown")
        return np.unique(np.array(self.ticks, np.int64))

    def end(self) -> int:
        """Tick after the last frame: its own duration, or else that of the frame before it."""
        pts = self.pts()
        gap = int(pts[-1] - pts[-2]) if len(pts) > 1 else 1
        return int(pts[-1]) + (self.duration or gap)
