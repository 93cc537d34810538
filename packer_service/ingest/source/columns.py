"""The columns of a file, from its schema or its first rows, so that the form of its rows is known before any work."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from preshard.packer_service.ingest.source.containers import arrow_batches
from preshard.packer_service.ingest.source.containers.compressed import head
from preshard.packer_service.ingest.source.containers.json_lines import parse_json
from preshard.packer_service.ingest.source.file import SourceFile
from preshard.packer_service.ingest.source.files import SCAN_BUFFER, SCANNED, reason_of
from preshard.packer_service.ingest.source.forms.detect import (
    FLAG,
    KINDS,
    NUMBER,
    OBJECTS,
    OTHER,
    Columns,
    kind_of_value,
)
from preshard.schemas.errors import ConfigError
from preshard.schemas.filesystem import locate

ROWS = 64
"""Rows that are looked at."""
BYTES = 4 * 2**20
"""Bytes of them, of lines: a single one may be as long."""


def columns_of(file: SourceFile) -> tuple[str, Columns] | None:
    """The container of a file and its columns; None for a file of JSON that holds no rows.

    A file that ends in ``.json`` may be JSON Lines (``jsonl``), or a single line (``object``), which is a row only if
    it has a form.

    Raises:
        ConfigError: a table cannot be read.
        OSError: the file cannot be read.
    """
    if file.kind == "parquet":
        return file.kind, _of_schema(_parquet_schema(file))
    if file.kind == "arrow":
        return file.kind, _of_schema(arrow_batches.schema(file))
    with _beginning(file) as opened:
        kind = _kind_of_json(opened) if file.kind == "json" else file.kind
        return None if kind is None else (kind, _of_rows(_scanned(opened, file, kind, ROWS)))


def first_rows(file: SourceFile, most: int) -> list[Any]:
    """A few rows of a file, each as its container gives it; none of a table whose rows cannot be read alone.

    Raises:
        OSError: the file cannot be read.
    """
    if file.kind == "parquet":
        filesystem, path = locate(file.uri)
        try:
            with filesystem.open_input_file(path) as opened:
                batches = pq.ParquetFile(opened).iter_batches(most, columns=list(file.columns or ()))
                return next(batches, pa.record_batch({})).to_pylist()
        except (pa.ArrowException, UnicodeDecodeError):
            return []  # which rows are damaged is found when they are measured
    if file.kind not in SCANNED:
        return []
    with _beginning(file) as opened:
        return list(_scanned(opened, file, file.kind, most))


def _scanned(opened: Any, file: SourceFile, kind: str, most: int) -> Iterator[Any]:
    scanned = "jsonl" if kind == "object" else kind
    found = SCANNED[scanned].scan(opened, file, 0, BYTES if scanned == "jsonl" else 2**62)
    return (row.row for row in islice((row for row in found if row.is_row), most))


def _beginning(file: SourceFile) -> Any:
    if file.compression is not None:
        return head(file)
    filesystem, path = locate(file.uri)
    return io.BufferedReader(filesystem.open_input_file(path), SCAN_BUFFER)


def _kind_of_json(opened: Any) -> str | None:
    """``json`` for an array, ``jsonl`` or ``object`` for lines, None for anything else."""
    opened.seek(0)
    begin = opened.read(BYTES).lstrip(b"\xef\xbb\xbf \t\r\n")
    opened.seek(0)
    if begin[:1] == b"[":
        return "json"
    line, _, rest = begin.partition(b"\n")
    if not isinstance(parse_json(line), dict):
        return None
    return "jsonl" if rest.lstrip()[:1] == b"{" else "object"


def _of_rows(rows: Iterable[Any]) -> Columns:
    columns: dict[str, str] = {}
    for row in rows:
        for name, value in row.items() if isinstance(row, dict) else ():
            if value is not None:
                kind = kind_of_value(value)
                columns[name] = max(kind, columns.get(name, kind), key=KINDS.index)
    return columns


def _parquet_schema(file: SourceFile) -> pa.Schema:
    filesystem, path = locate(file.uri)
    try:
        with filesystem.open_input_file(path) as opened:
            return pq.ParquetFile(opened).schema_arrow
    except (OSError, UnicodeDecodeError, pa.ArrowException) as error:
        raise ConfigError(f"SOURCE {file.uri}: is not a Parquet file ({reason_of(error)})") from None


def _of_schema(schema: pa.Schema | None) -> Columns:
    types = {} if schema is None else {field.name: field.type for field in schema}
    return {name: _kind(kind) for name, kind in types.items() if not pa.types.is_null(kind)}


def _kind(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return FLAG
    if any(test(kind) for test in (pa.types.is_integer, pa.types.is_floating, pa.types.is_temporal)):
        return NUMBER
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return OBJECTS if is_list and pa.types.is_struct(kind.value_type) else OTHER
