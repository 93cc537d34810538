"""Reads ranges of shards; the files read last stay open, since opening one in an object store takes a request."""

from __future__ import annotations

from typing import Any

from cachetools import LRUCache

from schemas.filesystem import locate

OPEN_FILES = 64
"""Most files that stay open."""

_OPEN: LRUCache[str, Any] = LRUCache(OPEN_FILES)


def read_range(uri: str, offset: int, size: int) -> bytes:
    """Bytes ``[offset, offset + size)`` of a file; fewer where it ends before.

    Raises:
        OSError: it cannot be read.
    """
    opened = _OPEN.get(uri)
    if opened is None:
        filesystem, path = locate(uri)
        opened = _OPEN[uri] = filesystem.open_input_file(path)
    data: bytes = opened.read_at(size, offset)
    return data
