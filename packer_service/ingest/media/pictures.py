"""The pictures of a video that are asked for, with as few others decoded on the way as FFmpeg can do without."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, zip_longest
from typing import Any, TypeVar

import av

from preshard.packer_service.ingest.media.demux import Video, shown_at

T = TypeVar("T")


class LostPictureError(Exception):
    """A picture that packets promise cannot be decoded. The text is empty, or follows a message and says why.

    Attributes:
        tick: which picture it is.
    """

    def __init__(self, tick: int, reason: str = "") -> None:
        super().__init__(reason)
        self.tick = tick


LATER, DAMAGED = " (the decoder went on to a later frame)", " (its data are damaged)"

SKIPPING = ("h264", "hevc", "mpeg4", "mpeg2video", "mpeg1video")
"""Decoders that leave out a picture to which no other refers, when they are told so before its packet, with nothing
lost for the pictures after it. VP8 loses the segments of a picture left out; those of VP9 and AV1 cannot be told."""

FIELDS_APART = ("mpegts", "mpeg")
"""Containers in which a stream can change from whole pictures to fields. The two fields of a picture can be in packets
of their own, of which one has another time than the picture, and would be left out as not wanted."""

PROGRESSIVE = 1
"""FFmpeg's ``field_order`` of a stream whose pictures are coded whole."""

LAYERS_AT = 21
"""Byte of HEVC's configuration record whose bits 3 to 5 count the temporal layers."""

DENSE = 0.9
"""Share of a clip's pictures from which on choosing among them costs more than leaving the others out saves."""

WITHOUT_REFERENCES, EVERYTHING = "NONREF", "DEFAULT"
"""What ``skip_frame`` leaves out."""


def can_skip(video: Video) -> bool:
    """Whether pictures that nothing refers to can be left out one by one."""
    context = video.stream.codec_context
    if context.name == "h264":
        can_change = set(FIELDS_APART).intersection(video.container.format.name.split(","))
        return context.field_order == PROGRESSIVE and not can_change
    return context.name in SKIPPING and (context.name != "hevc" or _has_one_layer(context.extradata))


def is_dense(video: Video, ticks: Sequence[int]) -> bool:
    """Whether nearly all pictures from the first wanted one to the last are wanted, so that choosing does not pay.

    How many there are is estimated by the container's frame rate; pixels do not depend on it.

    Args:
        video: an open video.
        ticks: the wanted pictures, ascending.
    """
    if len(ticks) < 2:
        return False
    rate = video.stream.average_rate
    passed = 0 if rate is None else (ticks[-1] - ticks[0]) * float(video.time_base * rate)
    return 0 < DENSE * passed <= len(ticks) - 1


def started_decoder(video: Video) -> Any:
    """The video's decoder, which knows nothing of what it decoded before.

    It uses one thread: a task holds one CPU, and results must not depend on their number.
    """
    decoder = video.stream.codec_context
    if decoder.is_open:
        decoder.flush_buffers()
        decoder.skip_frame = EVERYTHING
    else:
        decoder.thread_count = 1
    return decoder


def read_all(video: Video, packets: Iterator[Any], ticks: Iterable[int], use: Callable[[Any], T]) -> Iterator[T]:
    """What ``use`` makes of the pictures shown at these ticks, of a stretch of which nearly all are wanted.

    As a :class:`PictureReader` that leaves nothing out, which takes ten microseconds for each, a third of what a small
    picture takes.

    Raises:
        LostPictureError: a picture cannot be decoded or used; those before it were given.
    """
    decode, left = started_decoder(video).decode, iter(ticks)
    tick = next(left)
    try:
        for packet in chain(packets, (None,)):
            for picture in decode(packet):
                shown = picture.pts
                if shown is None:
                    shown = picture.dts
                if shown is None or shown < tick:
                    continue
                if shown > tick:
                    raise LostPictureError(tick, LATER)
                if picture.is_corrupt:
                    raise LostPictureError(tick, DAMAGED)
                yield use(picture)
                if (following := next(left, None)) is None:
                    return
                tick = following
    except av.FFmpegError as error:
        raise LostPictureError(tick, f" ({error.strerror})") from None
    raise LostPictureError(tick)


def _has_one_layer(extradata: bytes | None) -> bool:
    """Whether an HEVC stream has one temporal layer, by its configuration record (ISO/IEC 14496-15, section 8.3.3).

    With several, a picture that its own layer does not refer to may be referred to from the next.
    """
    if extradata is None or len(extradata) <= LAYERS_AT or extradata[0] != 1:
        return False
    return extradata[LAYERS_AT] >> 3 & 7 == 1


class PictureReader:
    """Feeds a decoder just enough packets to get the pictures asked for, in ascending order.

    Args:
        video: an open video.
        packets: its packets in decoding order, from a key frame on.
        leaving_out: where unwanted pictures may be left out, the ticks of those that will be asked for; else None.

    Attributes:
        n_fed: packets given to the decoder so far, with those whose pictures it left out.
        reason: why the last picture asked for could not be decoded; empty or ready to follow a message.
    """

    def __init__(self, video: Video, packets: Iterator[Any], leaving_out: Collection[int] | None = None) -> None:
        self.n_fed = 0
        self.reason = ""
        self._decoder = started_decoder(video)
        self._decode = self._decoder.decode
        self._packets = packets
        self._wanted = None if leaving_out is None else frozenset(leaving_out)
        self._skipping = EVERYTHING
        self._waiting: deque[Any] = deque()
        """Packets read and not yet decoded."""
        self._later_keys = 0
        """Key frames among them behind the first, so that most packets are not looked through for one."""
        self._decoded: deque[Any] = deque()
        self._flushed = False
        self._awaited: set[int] = set()
        """Wanted pictures whose packets the decoder was given."""

    def read(self, ticks: Iterable[int], use: Callable[[Any], T]) -> Iterator[T]:
        """What ``use`` makes of the picture shown at each of these ticks, ascending.

        Ends before the first that cannot be decoded or used; ``reason`` then says why.
        """
        ticks = list(ticks)
        for tick, following in zip_longest(ticks, ticks[1:]):
            try:
                picture = self._picture(tick, following)
                used = None if picture is None else use(picture)
            except av.FFmpegError as error:
                self.reason = f" ({error.strerror})"
                return
            if used is None:
                return
            yield used

    def _picture(self, tick: int, following: int | None) -> Any | None:
        if self._decoded and self._decoded[0].pts == tick:  # as nearly always where every picture is wanted
            return self._whole(self._decoded.popleft())
        self._skip_to_key(tick)
        is_asked = False
        while True:
            while self._decoded:
                picture = self._decoded.popleft()
                shown = picture.pts if picture.pts is not None else picture.dts
                if shown == tick:
                    return self._whole(picture)
                if shown is not None and shown > tick:
                    self.reason = LATER
                    return None
            if self._flushed:
                return None
            if not is_asked and tick in self._awaited:
                is_asked = True
                if self._is_last_of_group(following):
                    self._drain(following)
                    continue
            self._decode_next()

    def _whole(self, picture: Any) -> Any | None:
        if picture.is_corrupt:
            self.reason = DAMAGED
            return None
        return picture

    def _skip_to_key(self, tick: int) -> None:
        """Reads packets up to ``tick``, and drops those before the last key frame that is shown by then."""
        if self._decoded and any((picture.pts or picture.dts or 0) >= tick for picture in self._decoded):
            return
        if self._read_to_key(tick):
            self._decoded.clear()
            self._decoder.flush_buffers()

    def _read_to_key(self, tick: int) -> bool:
        """Whether packets were dropped, so that the next one is a key frame."""
        dropped, waiting = False, self._waiting
        while not waiting or (last := waiting[-1].dts) is None or last < tick:
            packet = next(self._packets, None)
            if packet is None:
                break
            is_key = packet.is_keyframe
            self._later_keys += bool(is_key and waiting)
            waiting.append(packet)
            if is_key:
                dropped = self._drop_before_keys(tick) or dropped
        return self._drop_before_keys(tick) or dropped

    def _drop_before_keys(self, tick: int) -> bool:
        if not self._later_keys:
            return False
        keys = [i for i, p in enumerate(self._waiting) if p.is_keyframe and (shown_at(p) or 0) <= tick]
        if not keys or keys[-1] == 0:
            return False
        for _ in range(keys[-1]):
            self._next_waiting()
        return True

    def _next_waiting(self) -> Any:
        packet = self._waiting.popleft()
        if self._later_keys and self._waiting[0].is_keyframe:
            self._later_keys -= 1
        return packet

    def _is_last_of_group(self, following: int | None) -> bool:
        """Whether nothing more is wanted of the packets before a key frame, or at all."""
        if following is None:
            return True
        self._read_to_key(following)
        return bool(self._waiting) and self._waiting[0].is_keyframe and (shown_at(self._waiting[0]) or 0) <= following

    def _drain(self, following: int | None) -> None:
        """Makes the decoder give what it holds back to put pictures in order, instead of feeding it for that."""
        self._decoded.extend(self._decoder.decode(None))
        self._flushed = following is None
        if not self._flushed:
            self._decoder.flush_buffers()

    def _decode_next(self) -> None:
        packet = self._next_waiting() if self._waiting else next(self._packets, None)
        if packet is None:
            self._flushed = True
        else:
            self.n_fed += 1
            if self._wanted is not None:
                self._leave_out(packet.pts, self._wanted)
        self._decoded.extend(self._decode(packet))

    def _leave_out(self, tick: int | None, wanted: frozenset[int]) -> None:
        """Tells the decoder whether the next packet's picture matters beyond those that refer to it."""
        skipping = EVERYTHING
        if tick in wanted:
            self._awaited.add(tick)
        elif tick is not None:
            skipping = WITHOUT_REFERENCES
        if skipping != self._skipping:
            self._decoder.skip_frame = self._skipping = skipping
