"""One line of time for the packets of a video, over the seams of a file that was joined from several."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from cachetools import LRUCache

if TYPE_CHECKING:
    from preshard.packer_service.ingest.media.demux import Video

JOINED = ("mpegts", "mpeg", "ogg", "flv")
"""Containers of which files can be joined by their bytes, or that a recorder goes on with after a pause: times may go
back or leap within them, and a seek by time may land in any part."""

BACK_SECONDS, LEAP_SECONDS = Fraction(1, 10), 10
"""Seconds by which decoding times go back, or leap in such a container, where another part begins: the thresholds of
FFmpeg's own program, which also goes on from the part before."""

_EBML, _SEGMENT = b"\x1a\x45\xdf\xa3", b"\x18\x53\x80\x67"
_EBML_FRAME = 12
"""Most bytes before the content of an element: without so many, nothing can follow."""


def shown_at(packet: Any) -> int | None:
    """Tick at which a packet's frame is shown; containers without presentation times have only decoding times."""
    return packet.pts if packet.pts is not None else packet.dts


class FileParts(NamedTuple):
    """Places at which the parts of a file may meet.

    Attributes:
        form: how parts are told apart. A ``stream`` is of :data:`JOINED`; ``fragments`` are those of MP4, which may
            begin anew as a stream does; of ``matroska``, a key frame is never shown before a picture that was read
            before it. A file known to be ``whole`` is one part.
        seam: the byte at which the second part begins, where that is known.
    """

    form: Literal["whole", "stream", "fragments", "matroska"]
    seam: int | None = None

    @property
    def may_be_several(self) -> bool:
        return self.form != "whole"


def find_parts(container: str, begin: bytes, size: int) -> FileParts:
    """Parts of a file, from the names that FFmpeg has for its container, its first bytes and their number in all.

    A Matroska file that was written whole says where it ends; one that was written to a pipe does not.
    """
    names = container.split(",")
    if "matroska" in names:
        end = _segment_end(begin)
        return FileParts("matroska", seam=end) if end is None or end + _EBML_FRAME < size else FileParts("whole")
    if "mov" in names:
        return FileParts("fragments" if b"mvex" in begin else "whole")
    return FileParts("stream" if set(JOINED).intersection(names) else "whole")


def _segment_end(begin: bytes) -> int | None:
    """The end of the first part of a Matroska file (RFC 8794, section 6), if it says so."""
    position = 0
    for mark in (_EBML, _SEGMENT):
        if begin[position : position + 4] != mark:
            return None
        position += 4
        length = 9 - begin[position].bit_length() if len(begin) > position + 8 else 9
        if length > 8:
            return None
        size = int.from_bytes(begin[position : position + length], "big") & ((1 << 7 * length) - 1)
        if mark == _SEGMENT and size == (1 << 7 * length) - 1:
            return None
        position += length + size
    return position


class Unbroken(NamedTuple):
    """The tick and the byte up to which the times of a file that may be joined run on from its beginning."""

    tick: int
    position: int


UNBROKEN: LRUCache[Hashable, Unbroken] = LRUCache(256)
"""The known parts of the files read last."""


class TimeLine:
    """One line of time for the packets of a video, from a place on at which it is still that of the file.

    Where another part begins, its first picture follows the last one of the part before.

    Attributes:
        is_beginning: whether it is known that all packets up to here belong to the file's first part.
    """

    def __init__(self, video: Video, *, is_beginning: bool = True) -> None:
        self.is_beginning = is_beginning
        self._identity, self._parts = video.identity, video.parts
        is_stream = self._parts.form == "stream"
        # A program stream does not give each picture its times, and what FFmpeg takes for them may run ahead of those
        # that it gives, or stop short at the end of a part.
        self._is_by_groups = is_stream and video.stream.codec_context.name in ("mpeg1video", "mpeg2video")
        self._back = int(BACK_SECONDS / video.time_base)
        self._leap = int(LEAP_SECONDS / video.time_base) if is_stream else None
        self._offset = self._ahead = 0
        self._is_later_part = False
        self._shown = self._end = -(2**62)
        """The ticks at which the last picture is shown, and leaves the screen."""
        self._decoded: int | None = None
        """Decoding time of the packet before, on the line."""
        self._key: int | None = None
        self._key_before: int | None = None
        """The ticks at which the last key frame is shown, and the one before it."""

    def groups(self, packets: Iterator[Any]) -> Iterator[list[Any]]:
        """Packets whose times are known together: of MPEG-1 and MPEG-2 a picture that others refer to, with those that
        are decoded behind it and shown before it."""
        if not self._is_by_groups:
            yield from ([packet] for packet in packets)
            return
        group: list[Any] = []
        for packet in packets:
            is_reference = packet.pts is None or packet.dts is None or packet.pts > packet.dts or packet.is_keyframe
            if group and is_reference:
                yield group
                group = []
            group.append(packet)
        if group:
            yield group

    def put(self, group: list[Any]) -> None:
        """Moves the times of packets that belong together onto the line."""
        times = [shown_at(packet) for packet in group]
        known = [tick for tick in times if tick is not None]
        if not known:
            return
        if len(known) > 1 and group[0].pts is not None and group[0].pts <= max(known[1:]):
            group[0].pts = known[0] = max(known[1:]) + (group[0].duration or 0)
        if self._begins_another(group[0], known):
            self._is_later_part, self._offset = True, self._end - min(known)
            self._key = self._key_before = None
        for packet in group:
            self._move(packet)

    def _move(self, packet: Any) -> None:
        shown = shown_at(packet)
        if shown is None:
            return
        shown += self._offset
        if packet.is_keyframe:
            self._key_before, self._key = self._key, shown
        if self._is_later_part:
            packet.pts = shown
            if self._parts.form == "matroska":
                # Matroska has no decoding times. Those that FFmpeg derives lag behind at a seam; no picture is shown
                # before the key frame before the last.
                packet.dts = self._key if self._key_before is None else self._key_before
            elif packet.dts is not None:
                packet.dts += self._offset
        if packet.dts is not None:
            self._ahead = packet.duration or (0 if self._decoded is None else max(0, packet.dts - self._decoded))
            self._decoded = packet.dts
        self._shown = max(self._shown, shown)
        self._end = max(self._end, shown + self._ahead)
        if self._parts.may_be_several and self.is_beginning and not self._is_later_part:
            self._note(shown if packet.dts is None else packet.dts, packet.pos or 0)

    def _begins_another(self, packet: Any, times: list[int]) -> bool:
        """Whether packets are the first of another part: decoding times and key frames never go back within one."""
        shown = times[0] + self._offset
        if self._parts.form == "matroska":
            if self._parts.seam is not None:  # FFmpeg reads two parts of such a file
                return not self._is_later_part and (packet.pos or 0) >= self._parts.seam
            return packet.is_keyframe and shown <= self._shown
        if packet.is_keyframe and self._key is not None:
            leaps = self._leap is not None and shown > self._end + self._leap
            if leaps or shown < self._key - self._back:
                return True
        if self._is_by_groups and min(times) + self._offset <= self._shown:
            return True
        if packet.dts is None or self._decoded is None or self._parts.form == "whole":
            return False
        decoded = packet.dts + self._offset
        leaps = self._leap is not None and decoded > self._decoded + self._ahead + self._leap
        return leaps or decoded < self._decoded - self._back

    def _note(self, tick: int, position: int) -> None:
        known = UNBROKEN.get(self._identity)
        if known is None or tick > known.tick:
            UNBROKEN[self._identity] = Unbroken(tick, position)
