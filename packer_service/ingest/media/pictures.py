"""The pictures of a video that are asked for, with as few others read and decoded on the way as FFmpeg allows."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import zip_longest
from operator import sub
from typing import Any, TypeVar

import av

from preshard.packer_service.ingest.media.demux import Video, open_at, seek_to
from preshard.packer_service.ingest.media.line import shown_at
from preshard.packer_service.ingest.media.reach import MediaFile

T = TypeVar("T")

SEEK_SECONDS = 10
"""Shortest gap between wanted pictures that is jumped over. A seek throws away what was read ahead, some hundred
kilobytes, which is what a shorter gap holds; and key frames are seldom further apart."""

SEEKABLE = ("mov", "matroska")
"""Containers whose index says where key frames are, and whose times are the same after a seek."""

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

WITHOUT_REFERENCES, EVERYTHING = "NONREF", "DEFAULT"
"""Values of ``skip_frame``: which frames the decoder leaves out."""


class LostPictureError(Exception):
    """A picture that packets promise cannot be decoded. The text is empty, or follows a message and says why.

    Attributes:
        tick: which picture it is.
    """

    def __init__(self, tick: int, reason: str = "") -> None:
        super().__init__(reason)
        self.tick = tick


def read_pictures(file: MediaFile, ticks: Sequence[int], use: Callable[[Any], T]) -> Iterator[T]:
    """Applies ``use`` to the picture shown at each tick.

    Decoding starts at the key frame before the first of them, and on the way to the next one skips whatever lies before
    the last key frame before it, and pictures to which no other refers; a long gap is not even read, where the
    container has an index. Should a wanted picture be lost by that, the rest is decoded with nothing left out.

    Args:
        file: the video.
        ticks: times of pictures in the stream's time base, ascending and distinct.
        use: takes a decoded picture, which is not valid any more when the next one is asked for.

    Raises:
        LostPictureError: after the pictures before it.
        DocumentError: ``bad_video``: not a video that can be read.
    """
    done, sparing = 0, True
    while done < len(ticks):
        with open_at(file, ticks[done]) as (video, packets):
            for number, run in enumerate(_runs(video, ticks[done:]) if sparing else [ticks[done:]]):
                sought = packets if number == 0 else seek_to(video, run[0])
                if sought is None:  # it is opened there once more, which tries other ways to get there
                    break
                reader = PictureReader(video, sought, leaving_out=run if sparing and can_skip(video) else None)
                try:
                    yield from reader.read(run, use)
                    done += len(run)
                except LostPictureError as lost:
                    done = bisect_left(ticks, lost.tick)
                    if number == 0 and not (sparing and can_skip(video)):
                        raise
                    sparing = False
                    break


def _runs(video: Video, ticks: Sequence[int]) -> list[Sequence[int]]:
    """The pictures in groups, between which the container is sought."""
    if len(ticks) < 2:
        return [ticks]
    if video.parts.may_be_several or not set(SEEKABLE).intersection(video.container.format.name.split(",")):
        return [ticks]
    gap = int(SEEK_SECONDS / video.time_base)
    if max(map(sub, ticks[1:], ticks), default=0) <= gap:
        return [ticks]
    cuts, index = [0], video.stream.index_entries
    for number in range(1, len(ticks)):
        before, tick = ticks[number - 1], ticks[number]
        if tick - before > gap:
            key = index.search_timestamp(tick)
            if key >= 0 and index[key].timestamp > before:  # else it needs pictures from before the gap
                cuts.append(number)
    return [ticks[first:end] for first, end in zip(cuts, [*cuts[1:], len(ticks)], strict=True)]


def can_skip(video: Video) -> bool:
    """Whether pictures that nothing refers to can be left out one by one."""
    context = video.stream.codec_context
    if context.name == "h264":
        can_change = set(FIELDS_APART).intersection(video.container.format.name.split(","))
        return context.field_order == PROGRESSIVE and not can_change
    return context.name in SKIPPING and (context.name != "hevc" or _has_one_layer(context.extradata))


def _has_one_layer(extradata: bytes | None) -> bool:
    """Whether an HEVC stream has one temporal layer, by its configuration record (ISO/IEC 14496-15, section 8.3.3).

    With several, a picture that its own layer does not refer to may be referred to from the next.
    """
    if extradata is None or len(extradata) <= LAYERS_AT or extradata[0] != 1:
        return False
    return extradata[LAYERS_AT] >> 3 & 7 == 1


def start_decoder(video: Video) -> Any:
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


class PictureReader:
    """Feeds a decoder just enough packets to get the pictures asked for, in ascending order.

    Args:
        video: an open video.
        packets: its packets in decoding order, from a key frame on.
        leaving_out: where unwanted pictures may be left out, the ticks of those that will be asked for; else None.

    Attributes:
        n_fed: packets given to the decoder so far, with those whose pictures it left out.
    """

    def __init__(self, video: Video, packets: Iterator[Any], leaving_out: Collection[int] | None = None) -> None:
        self.n_fed = 0
        self._decoder = start_decoder(video)
        self._packets = packets
        self._wanted = None if leaving_out is None else frozenset(leaving_out)
        self._skipping = EVERYTHING
        self._waiting: deque[Any] = deque()
        """Packets read and not yet decoded."""
        self._decoded: deque[Any] = deque()
        self._flushed = False
        self._awaited: set[int] = set()
        """Wanted pictures whose packets the decoder was given."""

    def read(self, ticks: Iterable[int], use: Callable[[Any], T]) -> Iterator[T]:
        """Applies ``use`` to the picture shown at each of these ticks, ascending.

        Raises:
            LostPictureError: one cannot be decoded or used; those before it were given.
        """
        ticks = list(ticks)
        for tick, following in zip_longest(ticks, ticks[1:]):
            try:
                picture = self._find(tick, following)
                if picture.is_corrupt:
                    raise LostPictureError(tick, DAMAGED)
                used = use(picture)
            except av.FFmpegError as error:
                raise LostPictureError(tick, f" ({error.strerror})") from None
            yield used

    def _find(self, tick: int, following: int | None) -> Any:
        if not any((shown_at(picture) or 0) >= tick for picture in self._decoded) and self._read_to_key(tick):
            self._decoded.clear()
            self._decoder.flush_buffers()
        is_asked = False
        while True:
            while self._decoded:
                picture = self._decoded.popleft()
                shown = shown_at(picture)
                if shown == tick:
                    return picture
                if shown is not None and shown > tick:
                    raise LostPictureError(tick, LATER)
            if self._flushed:
                raise LostPictureError(tick)
            if not is_asked and tick in self._awaited:
                is_asked = True
                if self._is_last_of_group(following):
                    self._drain(following)
                    continue
            self._decode_next()

    def _read_to_key(self, tick: int) -> bool:
        """Reads packets up to ``tick``, and drops those before the last key frame that is shown by then.

        Returns:
            Whether packets were dropped, so that the next one is a key frame.
        """
        dropped, waiting = self._drop_before_key(tick), self._waiting
        while not waiting or (last := waiting[-1].dts) is None or last < tick:
            packet = next(self._packets, None)
            if packet is None:
                break
            waiting.append(packet)
            if packet.is_keyframe:
                dropped = self._drop_before_key(tick) or dropped
        return dropped

    def _drop_before_key(self, tick: int) -> bool:
        keys = [i for i, packet in enumerate(self._waiting) if packet.is_keyframe and (shown_at(packet) or 0) <= tick]
        for _ in range(keys[-1] if keys else 0):
            self._waiting.popleft()
        return bool(keys and keys[-1])

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
        packet = self._waiting.popleft() if self._waiting else next(self._packets, None)
        self._flushed = packet is None
        if packet is not None:
            self.n_fed += 1
            if self._wanted is not None:
                self._leave_out(packet.pts, self._wanted)
        self._decoded.extend(self._decoder.decode(packet))

    def _leave_out(self, tick: int | None, wanted: frozenset[int]) -> None:
        """Tells the decoder whether the next packet's picture matters beyond those that refer to it."""
        skipping = EVERYTHING
        if tick in wanted:
            self._awaited.add(tick)
        elif tick is not None:
            skipping = WITHOUT_REFERENCES
        if skipping != self._skipping:
            self._decoder.skip_frame = self._skipping = skipping
