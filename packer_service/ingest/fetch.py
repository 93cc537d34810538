"""Reads ranges of files; the files read last stay open, since opening one in an object store takes a request."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from threading import Lock, Thread
from typing import Any, NamedTuple, TypeVar

from cachetools import LRUCache

from preshard.schemas.files.filesystem import locate, open_regular, read_within

K = TypeVar("K")
V = TypeVar("V")


def recent_values(limit: int, weigh: Callable[[V], int]) -> LRUCache[K, V]:
    """A cache that drops its least recently used values while all together weigh more than the limit.

    The newest value is kept whatever it weighs; ``LRUCache`` would refuse it, and it would be made again for each use.
    """
    limit = max(limit, 1)
    return LRUCache(limit, getsizeof=lambda value: min(max(weigh(value), 1), limit))


T = TypeVar("T")


def started(function: Callable[[], T], name: str) -> Future[T]:
    """The result of a call, as soon as it is there.

    The thread is a daemon's: a process that is told to end does not wait for a decoder or a store.

    Args:
        function: what is called.
        name: of the thread.
    """
    future: Future[T] = Future()
    Thread(target=partial(_fulfil, future, function), daemon=True, name=name).start()
    return future


def _fulfil(future: Future[T], function: Callable[[], T]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:  # the thread that waits raises it
        future.set_exception(error)


OPEN_FILES = 64
"""Most files that stay open."""
READERS = 16
"""Ranges that are read at the same time: an object store takes tens of milliseconds for each, however small it is."""
GAP = 1 << 18
"""Most bytes between two ranges that are read as one: they take less time than another request."""
PART = 1 << 23
"""Ranges are read as one up to so many bytes: more come faster by several requests."""

_OPEN: LRUCache[tuple[str, int], Any] = LRUCache(OPEN_FILES)
_OPENING = Lock()


class Range(NamedTuple):
    """Bytes ``[start, end)`` of a file. ``version`` distinguishes two states of it: an open file keeps its size."""

    uri: str
    start: int
    end: int
    version: int = 0


def read_range(wanted: Range) -> bytes:
    """A range of a file; fewer bytes where the file ends before.

    Raises:
        OSError: it cannot be read.
    """
    key = (wanted.uri, wanted.version)
    with _OPENING:
        opened = _OPEN.get(key)
    if opened is None:
        filesystem, path = locate(wanted.uri)
        opened = open_regular(filesystem, path, wanted.uri)
        with _OPENING:
            _OPEN[key] = opened
    try:
        return read_within(opened, wanted.start, wanted.end - wanted.start)
    except OSError:
        _OPEN.pop(key, None)  # whoever tries again opens it anew
        raise


def read_ranges(wanted: Sequence[Range]) -> list[memoryview | None]:
    """Ranges of files, in their order, several read at the same time, and near ones as one.

    Returns:
        Fewer bytes where a file ends before; None where it is gone.

    Raises:
        OSError: one cannot be read.
    """
    parts = list(_parts(wanted))
    wanted_parts = [part for part, _ in parts]
    alone = len(parts) == 1  # needs no thread
    read = map(_read_if_there, wanted_parts) if alone else _read_several(wanted_parts)
    found: list[memoryview | None] = [None] * len(wanted)
    for (part, numbers), data in zip(parts, read, strict=True):
        if data is not None:
            for number in numbers:
                _, start, end, _ = wanted[number]
                found[number] = memoryview(data)[start - part.start : end - part.start]
    return found


def _parts(wanted: Sequence[Range]) -> Iterator[tuple[Range, list[int]]]:
    """Groups of ranges that are read as one, with the numbers of the ranges in each."""
    part, numbers = None, list[int]()
    for number in sorted(range(len(wanted)), key=wanted.__getitem__):
        uri, start, end, version = wanted[number]
        same = part is not None and (uri, version) == (part.uri, part.version)
        if part is not None and same and start <= part.end + GAP and end - part.start <= PART:
            part = part._replace(end=max(part.end, end))
            numbers.append(number)
            continue
        if part is not None:
            yield part, numbers
        part, numbers = wanted[number], [number]
    if part is not None:
        yield part, numbers


def _read_several(parts: Iterable[Range]) -> Iterator[bytes | None]:
    """The parts in their order, of which :data:`READERS` are read at the same time."""
    running = deque[Future[bytes | None]]()
    for part in parts:
        if len(running) == READERS:
            yield running.popleft().result()
        running.append(started(partial(_read_if_there, part), "range"))
    while running:
        yield running.popleft().result()


def _read_if_there(wanted: Range) -> bytes | None:
    try:
        return read_range(wanted)
    except FileNotFoundError:
        return None
