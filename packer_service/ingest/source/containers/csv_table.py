"""CSV and TSV as pandas writes them: a header, and fields that may hold line breaks. Most values are text.

What breaks the rules of quotes is read as DuckDB does, strictly: a reject up to the line where it shows, with another
code where that may be many rows. A TSV whose quotes do not follow them has none: they are characters as any others.
A space before a quote makes it one, too, as in RFC 4180, Python and pandas; DuckDB drops one space, but not two.
"""

from __future__ import annotations

import csv
import io
import json
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

from cachetools import LRUCache

from preshard.packer_service.ingest.source.containers.compressed import read_content
from preshard.packer_service.ingest.source.containers.json_lines import MAX_LINE_BYTES
from preshard.packer_service.ingest.source.file import Found, SourceFile
from preshard.schemas.errors import LOST_ROWS, DocumentError

FRAGMENT_BYTES = 64 * 2**20
"""Bytes that one task measures, after it has read what is before them: only a record's quotes show where it ends."""
READ_BYTES = 2**20
"""Bytes read at a time where lines do not end as usual."""
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
    _, header_size, header = next(records, NO_RECORD)
    if isinstance(header, DocumentError):
        header = DocumentError(header.code, str(header).replace("the record", "the header"))
        if start == 0:
            yield Found(0, header_size, header)
    header, n_records = _names(header), 0
    for offset, size, fields in records:
        n_records += fields != []
        if offset >= end:
            return
        if offset >= start:
            yield Found(offset, size, _row(header, fields), fields != [])
    if not n_records and start == 0 and not isinstance(header, DocumentError):
        holds = "has a header and no record" if header_size else "is empty"
        yield Found(0, header_size, DocumentError("bad_row", f"the file {holds}"))


def header_of(opened: Any, file: SourceFile) -> list[str]:
    """The names of the columns; none where the header cannot be read."""
    _, _, header = next(_records(opened, file), NO_RECORD)
    return [] if isinstance(header, DocumentError) else list(_names(header))


def has_quotes(opened: Any, file: SourceFile) -> bool:
    """Whether all of a file follows the rules of quotes, or has none; what a TSV shows of itself in no other way."""
    opened.seek(0)
    while (data := opened.read(READ_BYTES)) and b'"' not in data:
        pass
    if not data:
        return True
    n_fields = 0
    lines = _Lines(opened)
    for _, _, fields in _records(opened, file, lines):
        n_fields = n_fields or len(fields)
        if isinstance(fields, DocumentError) or (lines.count > 1 and len(fields) != n_fields):
            return False
    return True


def decode(data: bytes, file: SourceFile) -> Any:
    """A row from the bytes of its record."""
    key = (file.uri, file.mtime_ns)
    if key not in _HEADERS:
        _, _, header = next(_records(io.BytesIO(read_content(file, 0, HEADER_BYTES)), file), NO_RECORD)
        _HEADERS[key] = [] if isinstance(header, DocumentError) else _names(header)
    try:
        return _row(_HEADERS[key], next(_reader(io.StringIO(data.decode(), newline=""), file), []))
    except (UnicodeDecodeError, csv.Error) as error:
        return _fault(error)


def _reader(lines: Any, file: SourceFile) -> Any:
    csv.field_size_limit(MAX_LINE_BYTES)
    delimiter = "\t" if file.kind == "tsv" else ","
    if not file.quoted:
        return csv.reader(lines, delimiter=delimiter, quoting=csv.QUOTE_NONE, strict=True)
    return csv.reader(lines, delimiter=delimiter, strict=True)


def _names(header: Any) -> Any:
    """The names of a header, none of which comes twice: of equal ones the later get a number, as in DuckDB."""
    names = dict[str, None]()
    for name in header if isinstance(header, list) else ():
        numbered = (f"{name}_{number}" for number in count(1))
        names[name if name not in names else next(one for one in numbered if one not in names)] = None
    return list(names) if isinstance(header, list) else header


def _records(opened: Any, file: SourceFile, lines: _Lines | None = None) -> Iterator[tuple[int, int, Any]]:
    """Offset, size and fields of every record, the header first; a list without fields is a blank line."""
    opened.seek(0)
    lines = lines or _Lines(opened)
    while True:
        offset, lines.count = lines.offset, 0
        lines.record = offset
        try:
            fields = next(_reader(lines, file))
        except StopIteration:
            return
        except (UnicodeDecodeError, csv.Error) as error:
            fields = _fault(error, lines.count)
        yield offset, lines.offset - offset, fields


class _Lines:
    """Lines of a file as text, and the bytes read so far, in all and before this record."""

    def __init__(self, opened: Any) -> None:
        self.opened = opened
        self.offset = self.record = self.count = 0
        self._ending: bytes | None = None
        self._ahead, self._queue = b"", deque[bytes]()

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        first = self.offset == 0
        line = self._next()
        if not line:
            raise StopIteration
        self.offset, self.count = self.offset + len(line), self.count + 1
        if self.offset - self.record > MAX_LINE_BYTES:
            raise csv.Error(f"a record has more than {MAX_LINE_BYTES} bytes")
        return line.decode("utf-8-sig" if first else "utf-8")

    def _next(self) -> bytes:
        """The next line. Where the first one ends in a CR alone, as on the first Macintoshes, all do."""
        if self._ending is None:
            line = self._physical()
            head, cr, rest = line.partition(b"\r")
            self._ending = b"\r" if rest.strip(b"\n") and head.count(b'"') % 2 == 0 else b"\n"
            if self._ending == b"\n":
                return line
            self._ahead = rest
            return head + cr
        if self._ending == b"\n":
            return self._physical()
        while not self._queue:
            *ended, self._ahead = self._ahead.split(b"\r")
            self._queue.extend(line + b"\r" for line in ended)
            if ended:
                break
            more = self.opened.read(READ_BYTES) if len(self._ahead) <= MAX_LINE_BYTES else b""
            if not more:
                self._queue.append(self._ahead)
                self._ahead = b""
            self._ahead += more
        return self._queue.popleft()

    def _physical(self) -> bytes:
        line: bytes = self.opened.readline(MAX_LINE_BYTES + 1)
        return line


def _row(header: Any, fields: Any) -> Any:
    """A record by its columns; an empty field counts as missing, which is how pandas writes one."""
    for given in (header, fields):
        if isinstance(given, DocumentError):
            return given
    if len(fields) != len(header):
        return DocumentError("bad_row", f"the record has {len(fields)} fields, and the header has {len(header)}")
    return {name: _value(name, field) for name, field in zip(header, fields, strict=True) if field}


def _value(name: str, field: str) -> Any:
    """The value that a field spells, if it is JSON or a number where such a value may stand."""
    with suppress(ValueError, RecursionError):
        if name in NESTED and field.lstrip().startswith(("[", "{")):
            return json.loads(field)
        if name in NUMBERS:
            return float(field)
    return field


def _fault(error: Exception, n_lines: int = 1) -> DocumentError:
    """Reason why a record cannot be read. An open quote takes lines with it, each of which may be a row."""
    reason = "it is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
    if n_lines > 1 and isinstance(error, csv.Error):
        lost = f"the record cannot be read ({reason}; {n_lines} lines); is a quotation mark not closed?"
        return DocumentError(LOST_ROWS, lost)
    return DocumentError("bad_row", f"the record cannot be read ({reason})")
