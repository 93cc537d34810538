"""One JSON array of rows, as LLaVA and Alpaca are written: read element by element, however large the file is."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterator
from typing import Any

from preshard.packer_service.ingest.source.containers.json_lines import MAX_LINE_BYTES, parse_json, why_not_json
from preshard.packer_service.ingest.source.file import Found, SourceFile
from preshard.schemas.errors import LOST_ROWS, DocumentError

FRAGMENT_BYTES = 64 * 2**20
"""Bytes that one task measures. It reads what is before them first, ten times faster than text is tokenised: only the
elements themselves show where one begins."""
READ_BYTES = 2**20
"""Bytes read at a time."""
_SPACE = " \t\r\n"


def scan(opened: Any, file: SourceFile, start: int, end: int) -> Iterator[Found]:  # noqa: ARG001
    """The elements that begin in bytes ``[start, end)``. What follows a fault in the array is one reject."""
    for found in _elements(_Window(opened)):
        if found.offset >= end:
            return
        if found.offset >= start:
            yield found


def decode(data: bytes, file: SourceFile) -> Any:  # noqa: ARG001
    """A row from its bytes."""
    return parse_json(data)


class _Window:
    """The text between the last element read and the bytes read so far. Bytes that are not UTF-8 keep their length."""

    def __init__(self, opened: Any) -> None:
        self.opened = opened
        self.decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
        self.text, self.at, self.offset, self.place, self.ended = "", 0, 0, 0, False
        self.grow()
        if self.text.startswith("\ufeff"):
            self.move(1)

    def grow(self) -> None:
        """Reads at least as much as is there, so that a long element is not parsed too often."""
        self.opened.seek(self.place)  # whoever takes the elements may read elsewhere in between
        data = self.opened.read(max(READ_BYTES, len(self.text) - self.at))
        self.place, self.ended = self.place + len(data), not data
        self.text, self.at = self.text[self.at :] + self.decoder.decode(data, final=self.ended), 0

    def move(self, characters: int) -> int:
        """Goes on by some characters; returns their bytes."""
        passed = self.text[self.at : self.at + characters]
        size = len(passed.encode("utf-8", "surrogateescape"))
        self.at, self.offset = self.at + characters, self.offset + size
        return size

    def next_character(self) -> str:
        """The next one that is no space, or nothing at the end of the file."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in _SPACE:
                self.move(1)
            if self.at < len(self.text):
                return self.text[self.at]
            if self.ended:
                return ""
            self.grow()


def _elements(window: _Window) -> Iterator[Found]:
    """The elements of an array, and of those behind it: ``cat`` joins files so."""
    wanted = "["
    while True:
        found = window.next_character()
        if found == "]" and wanted == ",":
            window.move(1)
            found, wanted = window.next_character(), "["
            if not found:
                return
        if found != wanted:
            yield _fault(window, f"{wanted!r} is missing")
            return
        window.move(1)
        if window.next_character() == "]":
            if wanted == ",":
                yield _fault(window, "a comma before ]; remove it")
                return
            wanted = ","
            continue
        element = _element(window)
        yield element
        if not element.size:
            return
        wanted = ","


def _element(window: _Window) -> Found:
    """The element that begins here; of size 0 where nothing can be read from here on."""
    window.next_character()
    while True:
        try:
            row, end = json.JSONDecoder().raw_decode(window.text, window.at)
            if end < len(window.text) or window.ended:  # a number could go on
                offset = window.offset
                size = window.move(end - window.at)
                return Found(offset, size, _limited(row, size))
        except RecursionError:
            return _fault(window, "it is nested too deeply")
        except json.JSONDecodeError as error:
            if window.ended or len(window.text) - window.at > MAX_LINE_BYTES:
                before = window.text[window.at : error.pos].encode("utf-8", "surrogateescape")
                return _fault(window, f"at byte {window.offset + len(before)}: {why_not_json(error)}")
        window.grow()


def _limited(row: Any, size: int) -> Any:
    if size <= MAX_LINE_BYTES:
        return row
    limit = f"more than the limit of {MAX_LINE_BYTES}; split it into several"
    return DocumentError("too_long", f"the row has {size} bytes, {limit}")


def _fault(window: _Window, reason: str) -> Found:
    what = f"the array cannot be read from byte {window.offset} on ({reason}); the rows after it are lost"
    # Its place is the last byte before it, since a fault at the end of the file would lie in no fragment.
    return Found(max(window.offset - 1, 0), 0, DocumentError(LOST_ROWS, what))
