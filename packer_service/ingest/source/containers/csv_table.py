"""CSV and TSV as pandas writes them: a header, and fields that may hold line breaks. Most values are text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from cachetools import LRUCache

from preshard.packer_service.ingest.source.containers.compressed import read_content
from preshard.packer_service.ingest.source.containers.json_lines import MAX_LINE_BYTES
from preshard.packer_service.ingest.source.file import Found, SourceFile
from preshard.schemas.errors import DocumentError

FRAGMENT_BYTES = 64 * 2**20
"""Bytes that one task measures, after it has read what is before them: only a record's quotes show where it ends."""
HEADER_BYTES = 2**20
"""Most bytes of a header."""
NO_RECORD = (0, 0, list[str]())
_HEADERS: LRUCache[tuple[str, int], list[str]] = LRUCache(256)
NESTED = frozenset(
    (
        *("messages", "conversations", "annotations", "media", "images", "videos", "history", "tools", "documents"),
        *("chat_template_kwargs", "texts", "text_list", "image_info", "frames"),
    )
)
"""Columns whose values are lists or mappings; a table keeps them as JSON text."""
NUMBERS = frozenset(("frames", "fps", "start", "end", "video_start", "video_end"))
"""Columns whose values may be numbers beside a video."""


def scan(opened: Any, file: SourceFile, start: int, end: int) -> Iterator[Found]:
    """The records that begin in bytes ``[start, end)``; the header is none."""
    records = _records(opened, file)
    _, _, header = next(records, NO_RECORD)
    for offset, size, fields in records:
        if offset >= end:
            return
        if offset >= start:
            yield Found(offset, size, _row(header, fields), fields != [])


def decode(data: bytes, file: SourceFile) -> Any:
    """A row from the bytes of its record."""
    key = (file.uri, file.mtime_ns)
    if key not in _HEADERS:
        _, _, header = next(_records(io.BytesIO(read_content(file, 0, HEADER_BYTES)), file), NO_RECORD)
        _HEADERS[key] = [] if isinstance(header, DocumentError) else header
    try:
        return _row(_HEADERS[key], next(_reader(io.StringIO(data.decode(), newline=""), file), []))
    except (UnicodeDecodeError, csv.Error) as error:
        return _fault(error)


def _reader(lines: Any, file: SourceFile) -> Any:
    csv.field_size_limit(MAX_LINE_BYTES)
    return csv.reader(lines, delimiter="\t" if file.kind == "tsv" else ",")


def _records(opened: Any, file: SourceFile) -> Iterator[tuple[int, int, Any]]:
    """Offset, size and fields of every record, the header first; a list without fields is a blank line."""
    opened.seek(0)
    lines = _Lines(opened)
    while True:
        offset = lines.record = lines.offset
        try:
            fields = next(_reader(lines, file))
        except StopIteration:
            return
        except (UnicodeDecodeError, csv.Error) as error:
            fields = _fault(error)
        yield offset, lines.offset - offset, fields


class _Lines:
    """Lines of a file as text, and the bytes read so far, in all and before this record."""

    def __init__(self, opened: Any) -> None:
        self.opened = opened
        self.offset = self.record = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        first = self.offset == 0
        line = self.opened.readline(MAX_LINE_BYTES + 1)
        if not line:
            raise StopIteration
        self.offset += len(line)
        if self.offset - self.record > MAX_LINE_BYTES:
            raise csv.Error(f"a record has more than {MAX_LINE_BYTES} bytes; is a quotation mark not closed?")
        return line.decode("utf-8-sig" if first else "utf-8")


def _row(header: Any, fields: Any) -> Any:
    """A record by its columns; an empty field counts as missing, which is how pandas writes one."""
    for given in (header, fields):
        if isinstance(given, DocumentError):
            return given
    if len(fields) != len(header):
        return DocumentError("bad_row", f"the record has {len(fields)} fields, and the header has {len(header)}")
    return {name: _value(name, field) for name, field in zip(header, fields, strict=True) if field}


def _value(name: str, field: str) -> Any:
    """What a field spells, if it is JSON or a number where such a value may stand."""
    with suppress(ValueError, RecursionError):
        if name in NESTED and field.lstrip().startswith(("[", "{")):
            return json.loads(field)
        if name in NUMBERS:
            return float(field)
    return field


def _fault(error: Exception) -> DocumentError:
    reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
    return DocumentError("bad_row", f"the record cannot be read ({reason})")
