"""Types that DuckDB gives columns of JSON and CSV, so that an expression over rows means what it does on the file."""

from __future__ import annotations

import csv
import json
import math
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from preshard.packer_service.ingest.source.file import AskedColumn, SourceFile
from preshard.packer_service.ingest.source.look import first_rows, header_names
from preshard.packer_service.tables.connect import connect

ROWS, BYTES = 20_480, 4 * 2**20
"""Most rows and bytes of a file that decide its columns' types: so many rows are DuckDB's own sample."""
EXAMPLES = 16
"""Values of a column of lists or objects that are kept: they show the keys that a row may lack."""
NESTED = "NESTED"
TEXT_TABLES = ("csv", "tsv")
"""Containers whose values are all text, which DuckDB gives types."""
_INTEGERS = frozenset(("BIGINT", "UBIGINT", "HUGEINT"))
_NUMBERS = _INTEGERS | {"DOUBLE"}
_WHOLE = re.compile(r"\s*[+-]?\d+\s*")
_NUMBER = re.compile(r"(?i)\s*[+-]?(\d+[.]?\d*|[.]\d+)(e[+-]?\d+)?\s*")
_FORMATS = {
    "DATE": ("%m-%d-%Y", "%m-%d-%y", "%d-%m-%Y", "%d-%m-%y", "%y-%m-%d"),
    "TIMESTAMP": ("%m-%d-%Y %I:%M:%S %p", "%m-%d-%y %I:%M:%S %p", "%d-%m-%Y %H:%M:%S", "%d-%m-%y %H:%M:%S"),
}
"""Formats besides ISO 8601 that DuckDB recognises in JSON text."""


def column_types(file: SourceFile, words: frozenset[str]) -> tuple[AskedColumn, ...]:
    """The columns of a file of rows that an expression may name, each with the type that DuckDB finds for it.

    Raises:
        OSError: the file cannot be read.
    """
    rows = [row for row in first_rows(file, ROWS, BYTES) if isinstance(row, dict)]
    if file.kind in TEXT_TABLES and rows:  # a column may have no value in any of them
        rows[0] = {**dict.fromkeys(header_names(file)), **rows[0]}
    asked = asked_names(rows, words)
    if not asked:
        return ()
    # Dates of a CSV are written in one way, which those of all columns tell.
    names = list(dict.fromkeys(name for row in rows for name in row)) if file.kind in TEXT_TABLES else asked
    values = [[row.get(name) for name in names] for row in rows]
    with tempfile.TemporaryDirectory(prefix="preshard-") as folder, connect() as connection:
        connection.execute("SET TimeZone = 'UTC'")
        sniff = _of_csv if file.kind in TEXT_TABLES else _of_json
        found = sniff(connection, Path(folder) / "rows", values)
    return tuple(
        AskedColumn(name, kind, form, _examples(column) if kind == NESTED else ())
        for name, (kind, form), column in zip(names, found, zip(*values, strict=True), strict=True)
        if name in asked
    )


def asked_names(rows: Sequence[Mapping[str, Any]], words: frozenset[str]) -> list[str]:
    """The columns of some rows that an expression may name; DuckDB does not tell apart what differs in case alone."""
    by_name: dict[str, str] = {}
    for row in rows:
        for name in row:
            if isinstance(name, str) and name.lower() in words:
                by_name.setdefault(name.lower(), name)
    return list(by_name.values())


def _of_json(
    connection: duckdb.DuckDBPyConnection, path: Path, values: Sequence[Sequence[Any]]
) -> list[tuple[str, str | None]]:
    with path.open("w", encoding="utf-8") as file:
        for row in values:
            file.write(json.dumps({f"c{i}": plain(value) for i, value in enumerate(row)}) + "\n")
    # What is not Unicode cannot be asked about, and its row will say so.
    rows = f"read_json('{path}', format='newline_delimited', sample_size=-1, ignore_errors=true"
    found = connection.execute(f"DESCRIBE SELECT * FROM {rows})").fetchall()
    kinds = {name: str(kind) for name, kind, *_ in found}
    types = list[tuple[str, str | None]]()
    for name in (f"c{i}" for i in range(len(values[0]))):
        kind = kinds.get(name, "JSON")
        if kind == '"NULL"':
            kind = "JSON"
        elif kind.endswith("]") or kind.startswith(("STRUCT", "MAP")):
            kind = NESTED
        types.append((kind, _format(connection, rows, name, kind)))
    return types


def _format(connection: duckdb.DuckDBPyConnection, rows: str, name: str, kind: str) -> str | None:
    """Format of a column of dates, if it is not ISO 8601."""
    formats = _FORMATS.get(kind, ())
    if not formats:
        return None
    [wanted] = connection.execute(f"SELECT min({name})::VARCHAR, max({name})::VARCHAR FROM {rows})").fetchall()
    for form in (None, *formats):
        read = cast_of(AskedColumn(name, kind, form, ()), "TRY_CAST").replace("strptime", "try_strptime")
        [found] = connection.execute(
            f"SELECT min(d)::VARCHAR, max(d)::VARCHAR, count(*) FILTER (d IS NULL AND {name} IS NOT NULL) "
            f"FROM (SELECT {name}, {read} AS d FROM {rows}, columns={{{name}: 'VARCHAR'}}))"
        ).fetchall()
        if (*wanted, 0) == found:
            return form
    return None


def _of_csv(
    connection: duckdb.DuckDBPyConnection, path: Path, values: Sequence[Sequence[Any]]
) -> list[tuple[str, str | None]]:
    with path.open("w", encoding="utf-8", errors="replace", newline="") as file:
        to = csv.writer(file)
        to.writerow(f"c{i}" for i in range(len(values[0])))
        to.writerows([text_of(value) or "" for value in row] for row in values)
    asked = "delim=',', quote='\"', escape='\"', header=true, sample_size=-1"
    query = f"SELECT Columns, DateFormat, TimestampFormat FROM sniff_csv('{path}', {asked})"
    columns, date, timestamp = connection.execute(query).fetchall()[0]
    forms = {"DATE": date, "TIMESTAMP": timestamp}
    return [(str(column["type"]), forms.get(str(column["type"]))) for column in columns]


def _examples(values: Sequence[Any]) -> tuple[str, ...]:
    texts = (text_of(value) for value in values if isinstance(value, dict | list))
    return tuple(dict.fromkeys(text for text in texts if text is not None))[:EXAMPLES]


def plain(value: Any) -> Any:
    """A value as JSON can spell it: bytes, which members of a tar are, as the text that they are, if any."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return None if isinstance(value, float) and not math.isfinite(value) else value


def text_of(value: Any) -> str | None:
    """A value as text that DuckDB casts to the type of its column."""
    value = plain(value)
    return value if value is None or isinstance(value, str) else json.dumps(value)


def fitting(column: AskedColumn, value: Any, *, is_text: bool) -> AskedColumn:
    """A column by its type in the file if a value has that, and else by the value's own.

    Args:
        column: as the file's first rows have it.
        value: of a row.
        is_text: whether all values of the file are text, as in CSV.
    """
    text = text_of(value)
    if text is None or column.type not in (*_NUMBERS, "BOOLEAN"):
        return column
    if isinstance(value, str) and not is_text:
        fits = False
    elif column.type == "BOOLEAN":
        fits = text.lower() in ("true", "false")
    else:
        fits = bool((_WHOLE if column.type in _INTEGERS else _NUMBER).fullmatch(text))
    return column if fits else own_type(column.name, value, is_text=is_text)


def own_type(name: str, value: Any, *, is_text: bool) -> AskedColumn:
    """A column by the type of a value that stands alone."""
    if isinstance(value, dict | list):
        return AskedColumn(name, NESTED, None, ())
    text, is_number = text_of(value) or "", is_text or not isinstance(value, str | bytes)
    if isinstance(value, bool):
        kind = "BOOLEAN"
    elif is_number and _WHOLE.fullmatch(text) and abs(int(text)) < 2**63:
        kind = "BIGINT"
    else:
        kind = "DOUBLE" if is_number and _NUMBER.fullmatch(text) else "VARCHAR"
    return AskedColumn(name, kind, None, ())


def cast_of(column: AskedColumn, cast: str = "CAST", structure: str | None = None) -> str:
    """An expression that makes a column's type of its text."""
    name = '"' + column.name.replace('"', '""') + '"'
    if structure is not None:
        return f"json_transform(CAST({name} AS JSON), '{structure.replace(chr(39), chr(39) * 2)}')"
    if column.format is not None:
        return f"CAST(strptime({name}, '{column.format}') AS {column.type})"
    return name if column.type == "VARCHAR" else f"{cast}({name} AS {'JSON' if column.type == NESTED else column.type})"


def structure_of(connection: duckdb.DuckDBPyConnection, texts: Sequence[str | None]) -> str | None:
    """Structure of lists and objects for ``json_transform``, with every key that one of them has."""
    connection.register("examples", pa.table({"text": pa.array(texts, pa.string())}))
    [(found,)] = connection.execute("SELECT json_group_structure(CAST(text AS JSON)) FROM examples").fetchall()
    structure = None if found is None else _without_empty_keys(json.loads(found))
    return json.dumps(structure, ensure_ascii=False) if isinstance(structure, dict | list) else None


def _without_empty_keys(structure: Any) -> Any:
    """Structure that ``json_transform`` takes: no key without a name, nor values of which none is there."""
    if isinstance(structure, dict):
        kept = {key: _without_empty_keys(value) for key, value in structure.items() if key}
        return kept or "JSON"
    if isinstance(structure, list):
        return [_without_empty_keys(value) for value in structure]
    return "JSON" if structure == "NULL" else structure
