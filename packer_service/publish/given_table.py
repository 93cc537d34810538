"""A table that a user joins to a dataset: Parquet, CSV, TSV or JSON Lines, with one row a document."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.json as pa_json
import pyarrow.parquet as pq

from preshard.packer_service.ingest.source.names import container_of
from preshard.packer_service.shards.store import require_answer
from preshard.schemas.errors import ConfigError
from preshard.schemas.files.filesystem import locate, split_query
from preshard.schemas.files.printed import several

_WHOLE = "-?(0|[1-9][0-9]*)"
_SPELLED = {
    pa.bool_(): "true|false|True|False|TRUE|FALSE",
    pa.int64(): _WHOLE,
    pa.float64(): rf"{_WHOLE}(\.[0-9]+)?([eE][+-]?[0-9]+)?",
}
"""Spellings of values of other types in text. One that begins with 0, as a postcode may, stays text."""


def read_given(location: str, on: str, columns: Sequence[str]) -> pa.Table:
    """The ids and the columns, as ``int64``, ``double``, ``string`` or ``bool``; each id occurs once.

    NaN counts as null, as pandas writes it. Columns of CSV have the narrowest type that all of their values fit.

    Args:
        location: path or URI of the table.
        on: its column of ids.
        columns: others that are read; all if empty.

    Raises:
        ConfigError: the table cannot be read, lacks a column or an id, has an id twice, or a column has another type.
    """
    require_answer("TABLE", location)
    table = _read(location)
    for name in (on, *columns):
        if table.column_names.count(name) != 1:
            there = "has no column" if name not in table.column_names else "has several columns"
            remedy = "; --on COLUMN names the one with the documents' ids" if name == on else ""
            has = ", ".join(table.column_names)[:300]
            raise ConfigError(f"TABLE {location}: {there} {name!r}, only {has}{remedy}")
    wanted = [name for name in columns or table.column_names if name != on]
    if not wanted:
        raise ConfigError(f"TABLE {location}: has no column besides {on!r}; give one with columns to join")
    ids = _ids(location, on, table[on])
    return pa.table([ids, *(_kept(location, name, table[name]) for name in wanted)], names=[on, *wanted])


def _read(location: str) -> pa.Table:
    kind, compression = container_of(split_query(location)[0]) or (None, None)
    if kind != "parquet" and kind not in _TEXT:
        raise ConfigError(f"TABLE {location}: is not a table; give a .parquet, .csv, .tsv or .jsonl file")
    try:
        filesystem, path = locate(location)
        if kind == "parquet":
            with filesystem.open_input_file(path) as opened:
                table: pa.Table = pq.read_table(opened)
            return table
        with filesystem.open_input_stream(path, compression=compression) as opened:
            content = opened.read()
        return _TEXT[kind](content)
    except FileNotFoundError:
        raise ConfigError(f"TABLE {location}: no such file") from None
    except (pa.ArrowException, OSError) as error:
        raise ConfigError(f"TABLE {location}: cannot be read: {' '.join(str(error).split())[:300]}") from None


def _read_lines(content: bytes) -> pa.Table:
    table = pa_json.read_json(pa.BufferReader(content))
    times = [field for field in table.schema if pa.types.is_temporal(field.type)]
    if not times:
        return table
    as_text = pa.schema(
        [(field.name, pa.string()) for field in times]
    )  # Arrow takes text that looks like a time for one
    return pa_json.read_json(pa.BufferReader(content), parse_options=pa_json.ParseOptions(explicit_schema=as_text))


def _read_tsv(content: bytes) -> pa.Table:
    return _read_csv(content, "\t")


def _read_csv(content: bytes, delimiter: str = ",") -> pa.Table:
    """All columns as text, and then as what all of it spells."""
    options = pa_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    with pa_csv.open_csv(pa.BufferReader(content), parse_options=options) as opened:
        names = opened.schema.names
    as_text = pa_csv.ConvertOptions(
        column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True, null_values=[""]
    )
    table = pa_csv.read_csv(pa.BufferReader(content), parse_options=options, convert_options=as_text)
    return pa.table([_spelled(column) for column in table.columns], names=names)


_TEXT: dict[str | None, Callable[[bytes], pa.Table]] = {"jsonl": _read_lines, "csv": _read_csv, "tsv": _read_tsv}


def _spelled(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Text as the first type that all of its values spell."""
    for type_, pattern in _SPELLED.items():
        fits = pc.all(pc.match_substring_regex(column, f"^({pattern})$")).as_py()
        if fits and column.null_count < len(column):
            try:
                return column.cast(type_)
            except pa.ArrowInvalid:  # too large for it
                continue
    return column


def _ids(location: str, on: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    if pa.types.is_floating(column.type) or pa.types.is_nested(column.type):
        raise ConfigError(f"TABLE {location}: {on} has the type {column.type}; ids are text or whole numbers")
    ids = column.cast(pa.string())
    if ids.null_count:
        raise ConfigError(f"TABLE {location}: {on} is null in {several(ids.null_count, 'row')}; leave them out")
    counted = pc.value_counts(ids)
    twice = counted.filter(pc.greater(counted.field("counts"), 1))
    if len(twice):
        first = twice[0].as_py()
        raise ConfigError(
            f"TABLE {location}: {on} {first['values']!r:.80} has {first['counts']} rows, and {len(twice) - 1:,} "
            "more ids have several; leave one row a document"
        )
    return ids


def _kept(location: str, name: str, column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as one of the types that documents keep.

    Raises:
        ConfigError: it has another type, or a number that is not finite.
    """
    type_ = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    wanted = next((to for is_of, to in _KEPT if is_of(type_)), None)
    if wanted is None:
        raise ConfigError(
            f"TABLE {location}: {name} has the type {type_}; legal are text, whole numbers, floats and bool: "
            "leave it out with --column, which names those to join"
        )
    try:
        kept = column.cast(wanted)
    except pa.ArrowInvalid as error:
        raise ConfigError(f"TABLE {location}: {name}: {' '.join(str(error).split())[:200]}") from None
    if pa.types.is_floating(wanted):
        kept = pc.if_else(pc.is_nan(kept), None, kept)
        if pc.any(pc.is_inf(kept)).as_py():
            raise ConfigError(f"TABLE {location}: {name} holds an infinite number; legal are finite ones and null")
    return kept


_KEPT = (
    (pa.types.is_boolean, pa.bool_()),
    (pa.types.is_integer, pa.int64()),
    (pa.types.is_floating, pa.float64()),
    (pa.types.is_string, pa.string()),
    (pa.types.is_large_string, pa.string()),
    (pa.types.is_string_view, pa.string()),
)
