"""JSON Lines: a row on each line, so that a range of bytes can be measured without what is before it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from preshard.packer_service.ingest.source.containers.found import Found
from preshard.packer_service.ingest.source.containers.lines import MAX_LINE_BYTES, Line, read_lines
from preshard.packer_service.ingest.source.file import SourceFile
from preshard.schemas.errors import DocumentError

FRAGMENT_BYTES = 8 * 2**20
"""Bytes that one task measures: a few seconds of tokenising. No result depends on it, since rows are numbered by
file. It is also the most that is held of a file's lines at a time."""


def scan(opened: Any, file: SourceFile, start: int, end: int) -> Iterator[Found]:  # noqa: ARG001
    """The lines that begin in bytes ``[start, end)``; a blank one is no row, but counts."""
    for at in range(start, end, FRAGMENT_BYTES):
        for line in read_lines(opened, at, min(at + FRAGMENT_BYTES, end)):
            is_row = line.data is None or bool(line.data.strip())
            yield Found(line.offset, line.size, _parse_line(line) if is_row else None, is_row)


def decode(data: bytes, file: SourceFile, opened: Any) -> Any:  # noqa: ARG001
    """A row from the bytes of its line."""
    return parse_json(data)


def _parse_line(line: Line) -> Any:
    if line.data is None:
        limit = f"more than the limit of {MAX_LINE_BYTES}; split it into several rows"
        return DocumentError("too_long", f"the line has {line.size} bytes, {limit}")
    return parse_json(line.data)


def parse_json(line: bytes) -> Any:
    """A JSON value, or why it is none."""
    try:
        return json.loads(line)
    except UnicodeDecodeError:
        return DocumentError("bad_row", "the line is not UTF-8")
    except RecursionError:
        return DocumentError("bad_row", "the line's JSON is nested too deeply")
    except ValueError as error:
        return DocumentError("bad_row", f"the line is not JSON ({error})")
