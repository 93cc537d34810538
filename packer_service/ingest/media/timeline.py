"""When a video's frames are shown, from its packets alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import av
import numpy as np

from preshard.packer_service.ingest.media.demux import Video, shown_at

if TYPE_CHECKING:
    from jaxtyping import Int64


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeline:
    """When frames are shown: ``pts`` ascending and distinct; ``origin`` is the tick of the video's first frame.

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
    """When frames are shown, from the packets up to the first that is decoded at ``stop`` or later.

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
        if packet.is_corrupt:
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
        """After the last packet, checks that the index promises no more."""
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
