"""One pass through a video, from the first picture asked for to the last: opened once, each of them decoded once."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from operator import sub
from typing import Any, TypeVar

from preshard.packer_service.ingest.media.demux import Video, open_at, seek_to
from preshard.packer_service.ingest.media.open import MediaFile
from preshard.packer_service.ingest.media.pictures import LostPictureError, PictureReader, can_skip, is_dense, read_all

T = TypeVar("T")

SEEK_SECONDS = 10
"""Shortest gap between wanted pictures that is jumped over. A seek throws away what was read ahead, some hundred
kilobytes, which is what a shorter gap holds; and key frames are seldom further apart."""

SEEKABLE = ("mov", "matroska")
"""Containers whose index says where key frames are, and whose times are the same after a seek."""


def read_pictures(file: MediaFile, ticks: Sequence[int], use: Callable[[Any], T]) -> Iterator[T]:
    """What ``use`` makes of the picture shown at each tick.

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
                try:  # counted by runs, as counting pictures takes 3 % of the time that tiny ones take
                    yield from _read_run(video, sought, run, use, sparing=sparing)
                    done += len(run)
                except LostPictureError as lost:
                    done = bisect_left(ticks, lost.tick)
                    if number == 0 and not (sparing and _leaves_out(video, run)):
                        raise
                    sparing = False
                    break


def _leaves_out(video: Video, ticks: Sequence[int]) -> bool:
    return can_skip(video) and not is_dense(video, ticks)


def _read_run(
    video: Video, packets: Iterator[Any], ticks: Sequence[int], use: Callable[[Any], T], *, sparing: bool
) -> Iterator[T]:
    if is_dense(video, ticks):
        return read_all(video, packets, ticks, use)
    reader = PictureReader(video, packets, leaving_out=ticks if sparing and can_skip(video) else None)
    return _read_chosen(reader, ticks, use)


def _read_chosen(reader: PictureReader, ticks: Sequence[int], use: Callable[[Any], T]) -> Iterator[T]:
    done = 0
    for used in reader.read(ticks, use):
        yield used
        done += 1
    if done < len(ticks):
        raise LostPictureError(ticks[done], reader.reason)


def _runs(video: Video, ticks: Sequence[int]) -> list[Sequence[int]]:
    """The pictures in groups, between which the container is sought."""
    if len(ticks) < 2:
        return [ticks]
    if not set(SEEKABLE).intersection(video.container.format.name.split(",")):
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
