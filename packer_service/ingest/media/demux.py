"""Opens a video and reads its packets from a key frame on, without decoding a pixel."""

from __future__ import annotations

import errno
import re
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from threading import Lock
from typing import TYPE_CHECKING, Any

import av
import av.logging
import numpy as np

from preshard.packer_service.ingest.media.line import UNBROKEN, FileParts, TimeLine, find_parts, shown_at
from preshard.packer_service.ingest.media.reach import MediaFile
from preshard.packer_service.ingest.signatures import BEGIN_BYTES, described
from preshard.schemas.errors import DocumentError

if TYPE_CHECKING:
    from jaxtyping import Int64


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """Times of the frames: ``pts`` ascending and distinct; ``origin`` is the tick of the video's first frame.

    ``end`` is the tick at which the last frame leaves the screen if packets were read to the file's end, else None.
    """

    pts: Int64[np.ndarray, "shown"]
    origin: int
    end: int | None


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
    """Reads the times at which frames are shown, from the packets up to the first that is decoded at ``stop`` or later.

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
    """A container that cannot be read any further is a bad video."""
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
        # Only VP8 puts frames that others refer to, but that are never shown, into packets of their own (RFC 6386,
        # section 9.1: show_frame).
        self.hidden_frames = video.stream.codec_context.name in ("vp8", "libvpx")

    def add(self, packet: Any) -> int | None:
        """Takes a packet, and returns the tick at which its frame is shown, None if it is not shown."""
        # In a transport stream it is the one before a gap, which may be a seam; the decoder says what is damaged.
        if packet.is_corrupt and not self.video.parts.may_be_several:
            raise self.video.bad("a packet within the clip is cut short or damaged; the file is truncated")
        tick = shown_at(packet)
        if tick is None:
            raise self.video.bad("a packet carries no time (a raw stream or a damaged file); convert it to mp4 or mkv")
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
        # that is marked to be discarded lies outside of the container's edit list.
        if packet.is_discard or (self.first_key is not None and tick < self.first_key):
            return False
        return not self.hidden_frames or bool(bytes(packet)[0] >> 4 & 1)

    def check_index(self) -> None:
        """Checks, after the last packet, that the index promises no more."""
        if self.video.parts.may_be_several:  # FFmpeg notes its index while it reads, before times are put on one line
            return
        entries = self.video.stream.index_entries
        if len(entries) and (self.last_read is None or entries[-1].timestamp > self.last_read):
            raise self.video.bad("ends before the last frame that its index promises; the file is truncated")

    def pts(self) -> Int64[np.ndarray, "shown"]:
        if not self.ticks:
            raise self.video.bad("holds no frame that can be shown")
        return np.unique(np.array(self.ticks, np.int64))

    def end(self) -> int:
        """Tick at which the last frame ends: after its own duration, or else after that of the frame before it."""
        pts = self.pts()
        gap = int(pts[-1] - pts[-2]) if len(pts) > 1 else 1
        return int(pts[-1]) + (self.duration or gap)


MAX_FRAME_PIXELS = 36 << 20
"""Largest frame: 8K is 8192 x 4320. A decoder holds several, in up to eight bytes per pixel."""

READ_BYTES = 1 << 17
"""Bytes that FFmpeg reads at a time. Each read is a call into Python, of which PyAV's 32 KiB would need four times as
many."""

SEEK_BACK_SECONDS = (0, 2, 16)
"""Seconds before the wanted time at which seeks aim, one after the other, until one lands at or before it. Key frames
are seldom more than some seconds apart; beyond the last of these, the video is read from its beginning."""

# Containers that keep times. Not among them: lists that name other files or addresses to open (HLS, DASH, concat),
# still images, and raw streams, which FFmpeg would also see in random bytes.
_CONTAINERS = "mov,matroska,avi,mpegts,mpeg,flv,asf,ogg,gif,apng,mxf,nut,rm,ivf,wtv"
_OPEN_OPTIONS = {"format_whitelist": _CONTAINERS, "protocol_whitelist": "none"}
_ROTATION = re.compile(r"display ?matrix: rotation of (-?\d+(?:\.\d+)?) degrees", re.IGNORECASE)
_log_lock = Lock()


class _Positions:
    """A file as FFmpeg reads it: a damaged file may seek to an invalid position, which a negative number reports."""

    def __init__(self, file: MediaFile) -> None:
        self.read, self.tell, self._file = file.read, file.tell, file

    def seek(self, offset: int, whence: int) -> int:
        try:
            return self._file.seek(offset, whence)
        except ValueError:
            return -errno.EINVAL


@dataclass(frozen=True, kw_only=True, slots=True)
class Video:
    """An open container and its first real video stream, from which packets can be read.

    ``identity`` tells its file from others, ``parts`` where it may have been joined.
    """

    container: Any
    stream: Any
    label: str
    identity: Hashable
    parts: FileParts

    @property
    def is_gif(self) -> bool:
        """Whether it can be decoded from the file's first picture on alone."""
        return self.container.format.name == "gif"

    @property
    def time_base(self) -> Fraction:
        return Fraction(self.stream.time_base)

    def bad(self, reason: str) -> DocumentError:
        return DocumentError("bad_video", f"{self.label}: {reason}")


@contextmanager
def open_video(file: MediaFile) -> Iterator[Video]:
    """Opens a container by its content (never by its name) and checks its header.

    Raises:
        DocumentError: ``bad_video``: not a container, no video stream, or frames that are empty or too large.
    """
    if not file.size:
        raise DocumentError("bad_video", f"{file.label}: the file is empty")
    file.seek(0)
    identity = (file.label, file.size, file.read(BEGIN_BYTES))
    file.seek(0)
    try:
        options = {**_OPEN_OPTIONS, **_decoder_options()}
        container = av.open(_Positions(file), options=options, metadata_errors="replace", buffer_size=READ_BYTES)
    except av.FFmpegError as error:
        what = described(identity[-1])
        legal = "legal are mp4, mov, mkv, webm, avi, mpeg and other timed containers"
        reason = f"not a video that can be read; {legal if what is None else f'it is {what}'}"
        raise DocumentError("bad_video", f"{file.label}: {reason}") from error
    with container:
        stream = _first_stream(container, file.label)
        parts = find_parts(container.format.name, identity[-1], file.size)
        video = Video(container=container, stream=stream, label=file.label, identity=identity, parts=parts)
        _check_size(video)
        video.stream.codec_context.options = _decoder_options()
        yield video


def _decoder_options() -> dict[str, str]:
    # Codecs also write a frame's size into their own data, where it may differ from the one in the container's header.
    return {"max_pixels": str(MAX_FRAME_PIXELS)}


def _first_stream(container: Any, label: str) -> Any:
    """The first video stream that is not a cover picture; no other stream is read."""
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
    # PyAV gives a stream's display matrix only with decoded frames, but FFmpeg's own description of the file has it.
    # PyAV returns descriptions through the log, whose level is shared by the whole process.
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


@contextmanager
def open_at(file: MediaFile, tick: int | None) -> Iterator[tuple[Video, Iterator[Any]]]:
    """A video and its packets in decoding order, from a key frame that is shown at or before ``tick``.

    None reads from the beginning. Demuxers seek by decoding time, or guess, so the place where a seek landed is
    checked, and earlier ones are tried until one is right: first by seeking further back, finally from the file's
    beginning. Each try opens the container again, because a demuxer that failed to seek is in no defined state.

    Raises:
        DocumentError: ``bad_video``, as in :func:`open_video`.
    """
    for back in (*(SEEK_BACK_SECONDS if tick is not None else ()), None):
        file.seek(0)
        with open_video(file) as video:
            if tick is None or back is None or tick <= (video.stream.start_time or 0):
                packets: Iterator[Any] | None = _from_key(video)
            else:
                packets = seek_to(video, tick, back=back)
            if packets is not None:
                yield video, packets
                return


def seek_to(video: Video, tick: int, *, back: int = 0) -> Iterator[Any] | None:
    """Packets from a key frame at or before ``tick``; None if a seek to ``back`` seconds before it landed too late.

    A container that may be joined is sought only as far as its times are known to run on, and read from there.
    """
    known = None
    if video.is_gif or video.parts.seam is not None:  # FFmpeg leaves out what is earlier, perhaps all of a second part
        return None
    if video.parts.may_be_several:
        known = UNBROKEN.get(video.identity)
        if known is None:
            return None
        tick = min(tick, known.tick)
    line = TimeLine(video, is_beginning=False)
    try:
        video.container.seek(int(tick - back / video.time_base), stream=video.stream)
        packets = _from_key(video, line)
        first = next(packets, None)
    except (av.FFmpegError, OverflowError):  # a time beyond 64 bits is past every end
        return None
    if first is None or (shown_at(first) or 0) > tick:
        return None
    if known is not None:
        if first.pos is None or first.pos > known.position:  # the same time in another part
            return None
        line.is_beginning = True
    return chain((first,), packets)


def _from_key(video: Video, line: TimeLine | None = None) -> Iterator[Any]:
    """Packets with content from the first key frame on, on one line of time: what lies before it cannot be decoded."""
    started, line = False, line or TimeLine(video)
    for group in line.groups(video.container.demux(video.stream)):
        if started and video.is_gif:
            group[0].is_keyframe = False
        started = started or (group[0].is_keyframe and group[0].size > 0)
        if started:
            line.put(group)
            yield from (packet for packet in group if packet.size)
