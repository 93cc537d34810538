"""The lines of a file that begin in a range of its bytes, each one whole."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any, NamedTuple

MAX_LINE_BYTES = 24 * 2**20
"""Longest line that is kept: its JSON can take 24 times as much memory (``[[],[],...``), 576 MiB."""

READ_BYTES = 2**20
"""Bytes read at a time of a line that does not end in its range."""


class Line(NamedTuple):
    """A line, its line end included, by its place. ``data`` is None if it is longer than ``MAX_LINE_BYTES``."""

    offset: int
    size: int
    data: bytes | None


def read_lines(opened: Any, start: int, end: int) -> list[Line]:
    """The lines that begin in bytes ``[start, end)``; the last one may end after them.

    Args:
        opened: a file that can be read at any position.
        start: first byte.
        end: byte after the last, at most ``MAX_LINE_BYTES`` further.
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
    """The last line, read beyond the range to its own end. A whole file can be one line, so not all of it is kept."""
    parts, size = [begun], len(begun)
    for part in _until_line_end(opened):
        size += len(part)
        if size > MAX_LINE_BYTES:
            parts.clear()
        else:
            parts.append(part)
    return Line(offset, size, None if size > MAX_LINE_BYTES else b"".join(parts))


def _until_line_end(opened: Any) -> Iterator[bytes]:
    while part := opened.read(READ_BYTES):
        end = part.find(b"\n") + 1
        yield part[:end] if end else part
        if end:
            return
