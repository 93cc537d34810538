"""Reads ranges of files; the files read last stay open, since opening one in an object store takes a request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any, NamedTuple

from cachetools import LRUCache

from preshard.packer_service.ingest.background import several
from preshard.schemas.filesystem import locate

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
        opened = filesystem.open_input_file(path)
        with _OPENING:
            _OPEN[key] = opened
    data: bytes = opened.read_at(wanted.end - wanted.start, wanted.start)
    return data


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
    read = map(_read_if_there, wanted_parts) if alone else several(_read_if_there, wanted_parts, READERS, "range")
    found: list[memoryview | None] = [None] * len(wanted)
    for (part, numbers), data in zip(parts, read, strict=True):
        if data is not None:
            for number in numbers:
                _, start, end, _ = wanted[number]
                found[number] = memoryview(data)[start - part.start : end - part.start]
    return found


def _parts(wanted: Sequence[Range]) -> Iterator[tuple[Range, list[int]]]:
    """What is read as one, and the numbers of the ranges that lie in it."""
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


def _read_if_there(wanted: Range) -> bytes | None:
    try:
        return read_range(wanted)
    except FileNotFoundError:
        return None
