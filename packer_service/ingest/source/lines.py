"""The lines of a file that begin in a range of its bytes, whole, whatever their length."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, NamedTuple

MAX_LINE_BYTES = 24 * 2**20
"""Longest line that is kept: its JSON can take 24 times as much memory (``[[],[],...``)."""


class Line(NamedTuple):
    """A line with its end, by its place in the file. ``data`` is None when it is longer than ``MAX_LINE_BYTES``."""

    offset: int
    size: int
    data: bytes | None


def read_lines(opened: Any, start: int, end: int) -> list[Line]:
    """The lines that begin in bytes ``[start, end)``; the last one may end behind them.

    Args:
        opened: a file that can be read at any place.
        start: first byte.
        end: byte behind the last, at most ``MAX_LINE_BYTES`` further.
    """
    before = max(start - 1, 0)
    opened.seek(before)
    data = opened.read(end - before)
    skipped = data.find(b"\n") + 1 if start else 0
    if start and not skipped:
        return []
    whole = io.BytesIO(data[skipped:]).readlines()
    lines, offset = [], before + skipped
    for line in whole:
        lines.append(Line(offset, len(line), line))
        offset += len(line)
    if lines and not whole[-1].endswith(b"\n"):
        lines[-1] = _finished(lines[-1].offset, whole[-1], opened)
    return lines


def _finished(offset: int, begun: bytes, opened: Any) -> Line:
    """A line that was read to the range's end, read to its own. A whole file can be one line: not all of it is held."""
    parts, size = [begun], len(begun)
    for part in _until_line_end(opened):
        size += len(part)
        if size > MAX_LINE_BYTES:
            parts.clear()
        else:
            parts.append(part)
    return Line(offset, size, None if size > MAX_LINE_BYTES else b"".join(parts))


def _until_line_end(opened: Any) -> Iterator[bytes]:
    while part := opened.read(2**20):
        end = part.find(b"\n") + 1
        yield part[:end] if end else part
        if end:
            return
