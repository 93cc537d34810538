"""Rows that the command's ``where`` leaves out: a DuckDB expression over columns, asked before rows are parsed."""

from __future__ import annotations

import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from itertools import groupby, islice
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import Bool

from preshard.packer_service.ingest.packed.dataset import open_dataset
from preshard.packer_service.ingest.source.containers.registry import TABLES
from preshard.packer_service.ingest.source.file import DATASET, AskedColumn, RowReference, SourceFile, reason_of
from preshard.packer_service.ingest.source.look import first_rows
from preshard.packer_service.ingest.source.rows import row_identity
from preshard.packer_service.job.planning.column_types import (
    NESTED,
    TEXT_TABLES,
    asked_names,
    cast_of,
    column_types,
    fitting,
    own_type,
    structure_of,
    text_of,
)
from preshard.packer_service.tables.connect import connect, database_of_process
from preshard.schemas.config import PackConfig, words_of
from preshard.schemas.errors import ConfigError, DocumentError

ROWS_AT_ONCE = 64
"""Rows that one query is asked about: they wait in memory, with the media that they hold."""

LOOKED_AT = 64
_SHOWN_COLUMNS = 20
_NUMBER = '"# of a row"'
"""Column of the numbers of rows; no expression names it by chance."""
_NOW = {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}

_UNCAST = ("list_view", "run_end_encoded")
"""Types that Arrow does not cast, or makes other lists of where they do not follow each other."""

CLOSED = (
    "SET GLOBAL TimeZone = 'UTC'",  # not that of this machine
    "SET enable_external_access = false",
    "SET lock_configuration = true",
)
"""Settings of the database that answers expressions."""

Row = tuple[int, RowReference, Any]


class Where:
    """An expression, to be asked of rows: the answer is DuckDB's own on their file.

    It can read no file and no network, nor change what DuckDB may do.
    """

    def __init__(self, expression: str, connection: duckdb.DuckDBPyConnection) -> None:
        self.expression, self._connection = expression, connection
        self.words = words_of(expression)

    def of_table(self, table: pa.Table, casts: Sequence[str] = ()) -> Bool[np.ndarray, "rows"]:
        """Whether it is true for each row of a table; null counts as false.

        Args:
            table: the columns that the expression may name.
            casts: what the columns are made of first, as a query selects them.

        Raises:
            duckdb.Error: it cannot be computed.
        """
        self._connection.register("given", _numbered(table))
        given = f"(SELECT {', '.join([_NUMBER, *casts])} FROM given)" if casts else "given"
        query = f"SELECT {_NUMBER}, coalesce(CAST(({self.expression}\n) AS BOOLEAN), false) AS kept FROM {given}"
        found = self._connection.sql(query).to_arrow_table()
        kept = np.zeros(len(table), np.bool_)
        kept[found.column(0).to_numpy()] = found.column("kept").to_numpy()
        return kept

    def of_group(self, table: pa.Table) -> list[bool | DocumentError]:
        """Whether it is true for each row of a table, or why it cannot be computed for one."""
        try:
            return list(map(bool, self.of_table(table)))
        except duckdb.Error as error:
            half = len(table) // 2
            return (
                [*self.of_group(table.slice(0, half)), *self.of_group(table.slice(half))]
                if half
                else [self._fault(error)]
            )

    def of_rows(self, rows: Sequence[Mapping[str, Any]], file: SourceFile) -> list[bool | DocumentError]:
        """Whether it is true for each row of JSON or CSV, or why it cannot be computed for one."""
        typed = [self._typed(row, file) for row in rows]
        answers: dict[int, bool | DocumentError] = {}
        for columns in dict.fromkeys(typed):
            numbers = [i for i, own in enumerate(typed) if own == columns]
            of_kind = self._answers([rows[i] for i in numbers], columns, is_text=file.kind in TEXT_TABLES)
            answers.update(zip(numbers, of_kind, strict=True))
        return [answers[i] for i in range(len(rows))]

    def _typed(self, row: Mapping[str, Any], file: SourceFile) -> tuple[AskedColumn, ...]:
        """The columns that the expression may name, as this row has them; null where it has none."""
        is_text = file.kind in TEXT_TABLES
        names = {name.lower(): name for name in asked_names([row], self.words)}
        columns = {
            column.name.lower(): fitting(
                column._replace(name=names.get(column.name.lower(), column.name)),
                row.get(names.get(column.name.lower(), "")),
                is_text=is_text,
            )
            for column in file.asked
        }
        columns |= {
            key: own_type(name, row[name], is_text=is_text) for key, name in names.items() if key not in columns
        }
        columns |= {word: AskedColumn(word, "VARCHAR", None, ()) for word in self.words - columns.keys()}
        return tuple(columns[key] for key in sorted(columns))

    def _answers(
        self, rows: Sequence[Mapping[str, Any]], columns: Sequence[AskedColumn], *, is_text: bool
    ) -> list[bool | DocumentError]:
        """The same of rows whose columns have these types. One row that does not is asked by the types of its own."""
        try:
            texts = {column.name: [text_of(row.get(column.name)) for row in rows] for column in columns}
            table = pa.table({name: pa.array(column, pa.string()) for name, column in texts.items()})
            return list(map(bool, self.of_table(table, self.casts(columns, texts))))
        except (duckdb.Error, ValueError, RecursionError) as error:
            if len(rows) > 1:
                return [answer for row in rows for answer in self._answers([row], columns, is_text=is_text)]
            own = [
                own_type(column.name, rows[0][column.name], is_text=is_text) if column.name in rows[0] else column
                for column in columns
            ]
            is_own = [column.type for column in own] == [column.type for column in columns]
            return [self._fault(error)] if is_own else self._answers(rows, own, is_text=is_text)

    def casts(self, columns: Sequence[AskedColumn], texts: Mapping[str, Sequence[str | None]]) -> list[str]:
        casts = []
        for column in columns:
            examples = (*column.examples, *texts[column.name])
            structure = structure_of(self._connection, examples) if column.type == NESTED else None
            casts.append(f"{cast_of(column, structure=structure)} AS {_quoted(column.name)}")
        return casts

    def _fault(self, error: Exception) -> DocumentError:
        return DocumentError("bad_row", f"where {self.expression!r:.200}: {_in_a_line(error)}")


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _numbered(table: pa.Table) -> pa.Table:
    return table.append_column(_NUMBER.strip('"'), pa.array(np.arange(len(table))))


def named_columns(table: pa.Table, file: SourceFile, words: frozenset[str]) -> pa.Table:
    """The columns of a table that an expression may name, in types that DuckDB takes from Arrow.

    The others may have any type. Columns of Parquet get the types that DuckDB gives them when it reads the file itself.
    """
    names, numbers = dict(file.renamed), dict[str, int]()
    table = table.rename_columns([names.get(name, name) for name in table.column_names])
    for number, name in enumerate(table.column_names):
        if name.lower() in words:
            numbers.setdefault(name.lower(), number)
    chosen = table.select(list(numbers.values()))
    for number, field in enumerate(chosen.schema):
        with suppress(pa.ArrowException, ValueError, OverflowError):  # DuckDB says itself what it does not take then
            column = _cast(chosen.column(number), _known_type(field.type, is_parquet=file.kind == "parquet"))
            chosen = chosen.set_column(number, field.with_type(column.type), column)
    return chosen


def _known_type(kind: pa.DataType, *, is_parquet: bool) -> pa.DataType:
    """A type that DuckDB takes in place of one that it does not, or makes of it when it reads Parquet."""

    def known(field: pa.Field) -> pa.Field:
        return field.with_type(_known_type(field.type, is_parquet=is_parquet))

    if pa.types.is_float16(kind):
        kind = pa.float32()
    elif pa.types.is_null(kind):
        kind = pa.int32()  # as in Parquet; Arrow casts a map of nulls to one that is too short
    elif pa.types.is_duration(kind) and is_parquet:
        kind = pa.int64()
    elif pa.types.is_timestamp(kind) and is_parquet and kind.unit in ("s", "ms"):
        kind = pa.timestamp("us", kind.tz)
    elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        # DuckDB takes no batch whose lists of dictionaries are all empty; Arrow does not copy runs.
        kind = _known_type(kind.value_type, is_parquet=is_parquet)
    elif pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        kind = pa.string() if pa.types.is_string_view(kind) else pa.binary()  # Arrow does not copy views
    elif pa.types.is_fixed_size_list(kind) and not is_parquet:
        kind = pa.list_(known(kind.value_field), kind.list_size)
    elif pa.types.is_large_list(kind):
        kind = pa.large_list(known(kind.value_field))
    elif pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind):
        kind = pa.list_(known(kind.value_field))
    elif pa.types.is_list_view(kind) or pa.types.is_large_list_view(kind):
        item = known(kind.value_field)
        kind = kind if item.type == kind.value_type else pa.large_list(item)
    elif pa.types.is_map(kind):
        kind = pa.map_(known(kind.key_field), known(kind.item_field), kind.keys_sorted)
    elif pa.types.is_struct(kind):
        kind = pa.struct(map(known, kind))
    return kind


def _cast(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if kind != column.type and any(name in str(column.type) for name in _UNCAST):
        column = pa.chunked_array([pa.array(column.to_pylist(), kind)])
    elif kind != column.type:
        # Copied then: DuckDB refuses structs behind an offset, which a cast slice may have.
        column = column.cast(kind).take(pa.array(np.arange(len(column))))
    return _through_parquet(column) if "decimal256" in str(kind) else column


def _through_parquet(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as DuckDB reads it of Parquet: decimals of 256 bits, which it takes from nowhere else, are doubles.

    It rounds in a way of its own, so that a cast of Arrow's answers ``=`` otherwise.
    """
    with tempfile.TemporaryDirectory(prefix="preshard-") as folder, connect() as connection:
        path = f"{folder}/column"
        pq.write_table(pa.table({"column": column}), path, row_group_size=max(len(column), 1), store_schema=False)
        query = 'SELECT "column" FROM read_parquet(?, file_row_number = true) ORDER BY file_row_number'
        return connection.sql(query, params=[path]).to_arrow_table().column(0)


@contextmanager
def asking(expression: str) -> Iterator[Where]:
    """An expression with a connection of its own, to a database that is closed to all else."""
    with database_of_process(*CLOSED).cursor() as connection:
        yield Where(expression, connection)


def check_where(expression: str | None, files: Sequence[SourceFile]) -> list[SourceFile]:
    """The files with the types of the columns that the expression may name. It is asked of the first rows of each.

    Raises:
        ConfigError: DuckDB refuses it, with its words and the columns that there are; or its answer changes from run
            to run.
    """
    if expression is None:
        return list(files)
    ready = list[SourceFile]()
    _refuse_changing(expression)
    with asking(expression) as where:
        for file in files:
            try:
                typed, table, names = _looked_at(file, where)
            except OSError as error:
                raise ConfigError(f"SOURCE {file.uri}: cannot be read ({reason_of(error)})") from None
            if table is not None:
                _ask(where, table, typed, names)
            ready.append(typed)
    return ready


def _looked_at(file: SourceFile, where: Where) -> tuple[SourceFile, pa.Table | None, list[str]]:
    """A file with the types of its columns, the beginning of those that are asked for, and the names of all.

    There is no table where there are no rows to look at.
    """
    if file.kind == DATASET:
        table = open_dataset(file).documents_of(0, 1)
        return file, table, table.column_names
    if file.kind in TABLES:
        schema = TABLES[file.kind].schema(file)
        if schema is None:
            return file, None, []
        found = named_columns(pa.Table.from_batches([], schema), file, where.words)
        return _with_empty_columns(file, schema, where.words), found, schema.names
    rows = [row for row in first_rows(file, LOOKED_AT) if isinstance(row, dict)]
    typed = replace(file, asked=column_types(file, where.words))
    texts = {column.name: [text_of(row.get(column.name)) for row in rows] for column in typed.asked}
    table = pa.table({name: pa.array(column, pa.string()) for name, column in texts.items()}) if rows else None
    return typed, table, list(dict.fromkeys(name for row in rows for name in row))


def _with_empty_columns(file: SourceFile, schema: pa.Schema, words: frozenset[str]) -> SourceFile:
    """A table of which those columns are read as well whose type says that they hold nothing."""
    names = dict(file.renamed)
    empty = [f.name for f in schema if pa.types.is_null(f.type) and names.get(f.name, f.name).lower() in words]
    return replace(file, columns=tuple(dict.fromkeys((*(file.columns or ()), *empty)))) if empty else file


def _ask(where: Where, table: pa.Table, file: SourceFile, names: Sequence[str]) -> None:
    try:
        where.of_table(table, where.casts(file.asked, table.to_pydict()) if file.asked else ())
    except duckdb.ConversionException:
        pass  # of a value: its row is rejected
    except duckdb.Error as error:
        shown = ", ".join(names[:_SHOWN_COLUMNS])
        raise ConfigError(f"where {where.expression!r:.200}: {_in_a_line(error)}; {file.label} has {shown}") from None


def _refuse_changing(expression: str) -> None:
    called = {name.lower() for name in re.findall(r"(\w+)\s*\(", expression)}
    changing = sorted((called & _changing_functions()) | (words_of(expression) & _NOW))
    if changing:
        raise ConfigError(
            f"where {expression!r:.200}: {changing[0]} changes from run to run; use columns and constants"
        )


@cache
def _changing_functions() -> frozenset[str]:
    query = "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE stability <> 'CONSISTENT'"
    with connect() as connection:
        return frozenset(name for (name,) in connection.execute(query).fetchall())


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split("\n\n")[0].split("LINE 1")[0].split())[:300]


def filtered_rows(rows: Iterable[Row], file: SourceFile, config: PackConfig, left_out: Counter[str]) -> Iterator[Row]:
    """The rows for which ``where`` is true, and those that cannot be read; the others are counted by source."""
    if config.where is None:
        yield from rows
        return
    with asking(config.where) as where:
        answered = _of_groups if file.kind in TABLES else _of_batches
        for (number, reference, content), answer in answered(iter(rows), file, where):
            if not isinstance(content, dict) or answer is True:
                yield number, reference, content
            elif isinstance(answer, DocumentError):
                yield number, reference, answer
            else:
                left_out[row_identity(content, config.ignore_columns, file.source)[1]] += 1


Answered = Iterator[tuple[Row, bool | DocumentError]]


def _of_groups(rows: Iterator[Row], file: SourceFile, where: Where) -> Answered:
    """Rows of a table with the answers to a whole group of them at a time."""
    for number, of_group in groupby(rows, lambda row: row[1].offset):
        answers: list[bool | DocumentError] | None = None
        for row in of_group:
            if answers is None and isinstance(row[2], dict):
                answers = where.of_group(named_columns(TABLES[file.kind].group(file, number).table, file, where.words))
            yield row, answers[row[1].size] if answers is not None else False


def _of_batches(rows: Iterator[Row], file: SourceFile, where: Where) -> Answered:
    while batch := list(islice(rows, ROWS_AT_ONCE)):
        asked = [content for _, _, content in batch if isinstance(content, dict)]
        answers = iter(where.of_rows(asked, file) if asked else [])
        for row in batch:
            yield row, next(answers) if isinstance(row[2], dict) else False


def filtered_documents(table: pa.Table, expression: str) -> Bool[np.ndarray, "rows"]:
    """Rows of ``documents.parquet`` for which ``where`` is true."""
    with asking(expression) as where:
        return where.of_table(table)
