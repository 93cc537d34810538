"""Rows that the command's ``where`` leaves out: a DuckDB expression over columns, asked before rows are parsed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
from jaxtyping import Bool

from preshard.packer_service.ingest.packed.dataset import open_dataset
from preshard.packer_service.ingest.source.containers.registry import TABLES
from preshard.packer_service.ingest.source.file import DATASET, RowReference, SourceFile
from preshard.packer_service.ingest.source.look import first_rows
from preshard.packer_service.ingest.source.rows import row_identity
from preshard.packer_service.tables.connect import connect
from preshard.schemas.config import PackConfig, words_of
from preshard.schemas.errors import ConfigError, DocumentError

ROWS_AT_ONCE = 64
"""Rows that one query is asked about: they wait in memory, with the media that they hold."""

LOOKED_AT = 64
_SHOWN_COLUMNS = 20
_NOW = {"current_date", "current_time", "current_timestamp", "localtime", "localtimestamp"}

Row = tuple[int, RowReference, Any]


class Where:
    """An expression, to be asked of rows. It can read no file and no network, nor change what DuckDB may do."""

    def __init__(self, expression: str, connection: duckdb.DuckDBPyConnection) -> None:
        self.expression, self._connection = expression, connection
        self.words = words_of(expression)

    def of_table(self, table: pa.Table) -> Bool[np.ndarray, "rows"]:
        """Whether it is true for each row of a table; null counts as false.

        Raises:
            duckdb.Error: it cannot be computed.
        """
        named = table.append_column("_row", pa.array(np.arange(len(table))))
        self._connection.register("given", named)
        query = f"SELECT _row, coalesce(CAST(({self.expression}\n) AS BOOLEAN), false) AS kept FROM given"
        found = self._connection.sql(query).to_arrow_table()
        kept = np.zeros(len(table), np.bool_)
        assert found is not None, "a query of rows"
        places, answers = (found.column(name).to_numpy() for name in ("_row", "kept"))
        kept[places] = answers
        return kept

    def of_rows(self, rows: Sequence[Mapping[str, Any]]) -> list[bool | DocumentError]:
        """Whether it is true for each row, or why it cannot be computed for one."""
        try:
            return list(map(bool, self.of_table(self._table(rows))))
        except duckdb.Error as error:
            if len(rows) > 1:
                return [answer for row in rows for answer in self.of_rows([row])]
            return [DocumentError("bad_row", f"where {self.expression!r:.200}: {_in_a_line(error)}")]

    def _table(self, rows: Sequence[Mapping[str, Any]]) -> pa.Table:
        """The columns that the expression may name. Those that no row here has are null."""
        by_name: dict[str, str] = {}
        for row in rows:
            for name in row:
                if isinstance(name, str) and name.lower() in self.words:
                    by_name.setdefault(name.lower(), name)
        columns = {name: [row.get(name) for row in rows] for name in by_name.values()}
        columns |= {word: [None] * len(rows) for word in self.words if word not in by_name}
        return pa.table({name: _column(values) for name, values in columns.items()})


def _column(values: list[Any]) -> pa.Array:
    """Scalars of one type; lists and objects count as null."""
    scalars = [value if isinstance(value, str | int | float) else None for value in values]
    kinds = {type(value) for value in scalars if value is not None}
    if kinds <= {int, float} and kinds:
        return pa.array([None if value is None else float(value) for value in scalars], pa.float64())
    if len(kinds) > 1:
        return pa.array([None if value is None else str(value) for value in scalars], pa.string())
    return pa.array(scalars)


@contextmanager
def asking(expression: str) -> Iterator[Where]:
    """An expression with a database of its own, which is closed to all else."""
    with connect(threads=1) as connection:
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        yield Where(expression, connection)


def check_where(config: PackConfig, files: Iterable[SourceFile]) -> None:
    """Asks the expression of the first rows of every file, before the work begins.

    Raises:
        ConfigError: DuckDB refuses it, with its words and the columns that there are; or its answer changes from run
            to run.
    """
    if config.where is None:
        return
    with asking(config.where) as where:
        _refuse_changing(config.where)
        for file in files:
            table, nested = _first_table(file)
            if words := where.words & {name.lower() for name in nested}:
                raise ConfigError(
                    f"where {config.where!r:.200}: {min(words)} of {file.label} holds lists or objects; name columns "
                    "of text, numbers or booleans"
                )
            if table is None:
                continue
            try:
                where.of_table(table)
            except duckdb.ConversionException:
                continue  # of a value: its row is rejected
            except duckdb.Error as error:
                names = ", ".join(table.column_names[:_SHOWN_COLUMNS])
                raise ConfigError(
                    f"where {config.where!r:.200}: {_in_a_line(error)}; {file.label} has {names}"
                ) from None


def _first_table(file: SourceFile) -> tuple[pa.Table | None, list[str]]:
    """Some rows of a file with all of its columns that hold one value, None if it has none to look at; and the names
    of those that hold more.
    """
    if file.kind == DATASET:
        return open_dataset(file).documents_of(0, 1), []
    if file.kind in TABLES:
        schema = TABLES[file.kind].schema(file) or pa.schema([])
        nested = [each.name for each in schema if pa.types.is_nested(each.type)]
        fields = [each for each in schema if each.name not in nested]
        return pa.schema(fields).empty_table() if fields else None, nested
    rows = [row for row in first_rows(file, LOOKED_AT) if isinstance(row, dict)]
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    scalars = {name: column for name, column in columns.items() if column.null_count < len(column)}
    nested = [name for name in names if name not in scalars and any(row.get(name) is not None for row in rows)]
    return pa.table(scalars) if scalars else None, nested


def _refuse_changing(expression: str) -> None:
    query = "SELECT DISTINCT lower(function_name) FROM duckdb_functions() WHERE stability <> 'CONSISTENT'"
    with connect(threads=1) as connection:
        names = {name for (name,) in connection.execute(query).fetchall()}
    called = {name.lower() for name in re.findall(r"(\w+)\s*\(", expression)}
    changing = sorted((called & names) | (words_of(expression) & _NOW))
    if changing:
        raise ConfigError(
            f"where {expression!r:.200}: {changing[0]} changes from run to run; use columns and constants"
        )


def _in_a_line(error: Exception) -> str:
    return " ".join(str(error).split("\n\n")[0].split("LINE 1")[0].split())[:300]


def filtered_rows(rows: Iterable[Row], file: SourceFile, config: PackConfig, left_out: Counter[str]) -> Iterator[Row]:
    """The rows for which ``where`` is true, and those that cannot be read; the others are counted by source."""
    if config.where is None:
        yield from rows
        return
    waiting = iter(rows)
    with asking(config.where) as where:
        while batch := list(islice(waiting, ROWS_AT_ONCE)):
            asked = [content for _, _, content in batch if isinstance(content, dict)]
            answers = iter(where.of_rows(asked) if asked else [])
            for number, reference, content in batch:
                answer = next(answers) if isinstance(content, dict) else True
                if isinstance(answer, DocumentError):
                    yield number, reference, answer
                elif answer:
                    yield number, reference, content
                else:
                    left_out[row_identity(content, config.ignore_columns, file.source)[1]] += 1


def filtered_documents(table: pa.Table, expression: str) -> Bool[np.ndarray, "rows"]:
    """Which rows of ``documents.parquet`` ``where`` is true for."""
    with asking(expression) as where:
        return where.of_table(table)
