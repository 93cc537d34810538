"""JSON Lines: a row on each line, so that a range of bytes can be measured without what is before it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from preshard.packer_service.ingest.source.file import Found, SourceFile
from preshard.schemas.errors import DocumentError

FRAGMENT_BYTES = 8 * 2**20
"""Bytes that one task measures: a few seconds of tokenising. No result depends on it, since rows are numbered by
file. It is also the most that is held of a file's lines at a time."""


MAX_LINE_BYTES = 24 * 2**20
"""Longest line that is kept: its JSON can take 24 times as much memory (``[[],[],...``), 576 MiB."""

READ_BYTES = 2**20
"""Bytes read at a time of a line that does not end in its range."""


def scan(opened: Any, file: SourceFile, start: int, end: int) -> Iterator[Found]:  # noqa: ARG001
    """The lines that begin in bytes ``[start, end)``; a blank one is no row, but counts."""
    for at in range(start, end, FRAGMENT_BYTES):
        for line in read_lines(opened, at, min(at + FRAGMENT_BYTES, end)):
            if line.data is None:
                limit = f"more than the limit of {MAX_LINE_BYTES}; split it into several rows"
                reject = DocumentError("too_long", f"the line has {line.size} bytes, {limit}")
                yield Found(line.offset, line.size, reject)
            else:
                is_row = bool(line.data.strip())
                yield Found(line.offset, line.size, parse_json(line.data) if is_row else None, is_row)


def decode(data: bytes, file: SourceFile) -> Any:  # noqa: ARG001
    """A row from the bytes of its line."""
    return parse_json(data)


def parse_json(line: bytes) -> Any:
    """A JSON value, or why the text is not JSON."""
    try:
        return json.loads(line)
    except UnicodeDecodeError:
        return DocumentError("bad_row", "the line is not UTF-8")
    except RecursionError:
        return DocumentError("bad_row", "the line's JSON is nested too deeply")
    except json.JSONDecodeError as error:
        return DocumentError("bad_row", f"the line is not JSON (column {error.colno}: {why_not_json(error)})")
    except ValueError as error:
        return DocumentError("bad_row", f"the line is not JSON ({error})")


def why_not_json(error: json.JSONDecodeError) -> str:
    """The reason in words of who wrote the text, where it is one of those that people's files have."""
    before, after = error.doc[: error.pos].rstrip(), error.doc[error.pos :]
    if after.startswith(("//", "/*", "#")):
        return "a comment, which JSON does not have; remove it"
    if after.startswith(("'", "None", "True", "False")):
        return "a value as Python prints it; write it by json.dumps"
    if before.endswith(",") and after.startswith(("]", "}")):
        return f"a comma before {after[0]}; remove it"
    if error.msg == "Extra data" and after.startswith(","):
        return "a comma behind the row; write each row as a line of its own, or all as one array that begins with ["
    if error.msg == "Extra data" and after.startswith(("{", "[")):
        return "another value on the same line; write each on its own, as jq -c . does"
    return error.msg


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
    parts, size, ends = [begun], len(begun), False
    while not ends and (part := opened.read(READ_BYTES)):
        end = part.find(b"\n") + 1
        ends, part = end > 0, part[: end or len(part)]
        size += len(part)
        if size > MAX_LINE_BYTES:
            parts.clear()
        else:
            parts.append(part)
    return Line(offset, size, None if size > MAX_LINE_BYTES else b"".join(parts))
