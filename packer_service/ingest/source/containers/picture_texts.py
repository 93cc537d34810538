"""Pictures with a text beside each, of the same name (``a.jpg`` and ``a.txt``), as rows of a folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from cachetools import LRUCache, cached

from preshard.packer_service.ingest.source.containers.arrow_values import TableRows
from preshard.packer_service.ingest.source.containers.row_groups import DamagedGroupError
from preshard.packer_service.ingest.source.file import SourceFile
from preshard.packer_service.ingest.source.forms.inline import IMAGE_SUFFIXES, VIDEO_SUFFIXES
from preshard.packer_service.ingest.source.walk import files_below, is_hidden
from preshard.schemas.files.filesystem import locate

PICTURES = "pictures"
"""The kind of such a source."""
PATTERN, ENDING = "*.txt", ".txt"
GROUP_ROWS = 1000
"""Rows that one task measures."""


def is_medium(path: str) -> bool:
    """Whether a file is a picture or video by its ending."""
    return os.path.splitext(path)[1][1:].lower() in IMAGE_SUFFIXES | VIDEO_SUFFIXES  # noqa: PTH122


def pairs_among(paths: Iterable[str]) -> list[tuple[str, str]]:
    """The pictures and videos that have a text beside them, each with it, in order.

    Args:
        paths: files, relative to their folder.
    """
    every = {path for path in paths if not is_hidden(path)}
    texts = {path: f"{os.path.splitext(path)[0]}{ENDING}" for path in every if is_medium(path)}  # noqa: PTH122
    return sorted((path, text) for path, text in texts.items() if text in every)


@cached(LRUCache(16), key=lambda file: (file.uri, file.size, file.mtime_ns))
def _pairs(file: SourceFile) -> list[tuple[str, str]]:
    filesystem, root = locate(file.folder)
    return pairs_among(info.path[len(root) :].strip("/") for info in files_below(filesystem, root))


def schema(file: SourceFile) -> pa.Schema:  # noqa: ARG001
    """The columns."""
    return pa.schema([(name, pa.string()) for name in ("id", "file_name", "text")])


def fragments(file: SourceFile) -> list[tuple[int, int]]:
    """Each group of rows is one."""
    return [(number, number + 1) for number in range(-(-len(_pairs(file)) // GROUP_ROWS))]


@cached(LRUCache(16), key=lambda file, number: (file.uri, file.size, file.mtime_ns, file.columns, number))
def group(file: SourceFile, number: int) -> TableRows:
    """One group of rows: the name of each picture without its ending, its file, and its text.

    Raises:
        DamagedGroupError: there is no such group any more.
        OSError: a text cannot be read.
    """
    found = _pairs(file)[number * GROUP_ROWS : (number + 1) * GROUP_ROWS]
    if not found:
        raise DamagedGroupError(number, 0)
    return _rows(file, found)


def first_rows(file: SourceFile, most: int) -> list[Any]:
    """A few rows.

    Raises:
        OSError: a text cannot be read.
    """
    rows = _rows(file, _pairs(file)[:most])
    return [rows.row(i) for i in range(len(rows))]


def _rows(file: SourceFile, found: Sequence[tuple[str, str]]) -> TableRows:
    filesystem, root = locate(file.folder)
    texts = list[pa.Scalar]()
    for _, name in found:
        with filesystem.open_input_file(f"{root.rstrip('/')}/{name}") as opened:
            texts.append(opened.read().removeprefix(b"\xef\xbb\xbf").rstrip(b"\r\n"))
    columns = {
        "id": pa.array([os.path.splitext(path)[0] for path, _ in found]),  # noqa: PTH122
        "file_name": pa.array([path for path, _ in found]),
        "text": pa.array(texts, pa.binary()).view(pa.string()),
    }
    table = pa.table(columns)
    return TableRows(table if file.columns is None else table.select(list(file.columns)))
