"""Rows in Parquet files on any filesystem, written as they come and read again by ranges of the column they lie by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from preshard.packer_service.shards.store import Folder
from preshard.schemas.errors import PreshardError

BATCH_ROWS = 16_384
"""Rows of a group, which is the least that is read: about a megabyte."""

FETCHED_BYTES = 4 << 20
"""Bytes of a file that are fetched together, unless one row group has more: in an object store each fetch waits."""

_FACTS = "facts"


class WorkError(PreshardError):
    """A file of the work folder cannot be read again."""


class KeyRange(NamedTuple):
    """Rows whose ``column`` is in ``[low, high)``."""

    column: str
    low: int
    high: int


def write_rows(
    folder: Folder,
    name: str,
    batches: Iterable[pa.RecordBatch],
    schema: pa.Schema,
    *,
    by: str,
    facts: Callable[[], str] = str,
) -> None:
    """Writes rows that come in the order of a column, of which the file keeps the least and the largest of each group.

    Args:
        folder: where to.
        name: of the file.
        batches: the rows.
        schema: of the rows.
        by: the column.
        facts: a text that is kept with the rows; asked for when all have come.
    """
    settings = {
        "compression": "lz4",
        "use_dictionary": [each.name for each in schema if pa.types.is_string(each.type) and each.name != "doc_id"],
        "column_encoding": {each.name: "DELTA_BINARY_PACKED" for each in schema if each.type == pa.int64()},
        "write_statistics": [by],
    }
    with folder.writer(name) as sink, pq.ParquetWriter(pa.PythonFile(sink, "w"), schema, **settings) as file:
        for batch in batches:
            file.write_batch(batch, row_group_size=BATCH_ROWS)
        file.add_key_value_metadata({_FACTS: facts()})


def sort_parts(parts: list[pa.Table], by: Sequence[str]) -> pa.Table:
    """The rows of some tables in the order of some columns; the list is emptied, so that rows lie in memory once."""
    table = pa.concat_tables(parts, promote_options="permissive")
    parts.clear()
    order, found = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in by]), dict[str, pa.ChunkedArray]()
    for name in table.column_names:
        found[name] = table[name].take(order)
        table = table.drop_columns([name])
    return pa.table(found)


def in_batches(parts: Iterable[pa.Table], rows: int) -> Iterator[pa.Table]:
    """The same rows in tables of so many rows each, the last of fewer."""
    waiting, have = list[pa.Table](), 0
    for part in parts:
        waiting.append(part)
        have += len(part)
        if have < rows:
            continue
        joined = pa.concat_tables(waiting).unify_dictionaries()
        for start in range(0, have - rows + 1, rows):
            yield joined.slice(start, rows).combine_chunks()
        rest = have % rows
        waiting, have = [joined.slice(have - rest)], rest
    if have:
        yield pa.concat_tables(waiting).unify_dictionaries().combine_chunks()


def read_facts(folder: Folder, name: str) -> str:
    """The text that is kept with the rows of a file.

    Raises:
        WorkError: the file is damaged.
    """
    with _opened(folder, name) as file:
        return file.metadata.metadata[_FACTS.encode()].decode()


def read_groups(
    file: pq.ParquetFile,
    rows: int = BATCH_ROWS,
    *,
    groups: Iterable[int] | None = None,
    columns: Sequence[str] | None = None,
) -> Iterator[pa.RecordBatch]:
    """The rows of a file in order, with a few of its row groups in memory.

    Asked for all of them at once, pyarrow fetches them all before the first row passes, and keeps them to the end.

    Args:
        file: what is read.
        rows: most rows of a batch.
        groups: row groups that are wanted; by default all.
        columns: those that are wanted; by default all.
    """
    fetched, size = list[int](), 0
    wanted = list(range(file.num_row_groups) if groups is None else groups)
    for group in wanted:
        fetched.append(group)
        size += file.metadata.row_group(group).total_byte_size
        if size >= FETCHED_BYTES or group == wanted[-1]:
            yield from file.iter_batches(rows, row_groups=fetched, columns=None if columns is None else list(columns))
            fetched, size = [], 0


def read_rows(
    folder: Folder, names: Sequence[str], within: KeyRange, columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of a range, file by file, each file's in its order.

    Raises:
        WorkError: a file is damaged.
    """
    for name in names:
        with _opened(folder, name) as file:
            wanted = None if columns is None else list(dict.fromkeys([within.column, *columns]))
            for batch in read_groups(file, groups=_groups(file, within), columns=wanted):
                keys = batch.column(within.column)
                low, high = (pa.scalar(edge, pa.uint64()).cast(keys.type) for edge in (within.low, within.high - 1))
                kept = batch.filter(pc.and_(pc.greater_equal(keys, low), pc.less_equal(keys, high)))
                if kept.num_rows:
                    yield kept if columns is None else kept.select(list(columns))


def _groups(file: pq.ParquetFile, within: KeyRange) -> list[int]:
    """The row groups of a file that may hold rows of a range."""
    place = file.schema_arrow.names.index(within.column)  # asking metadata.schema makes a circle that outlives the file
    metadata, found = file.metadata, list[int]()
    for group in range(metadata.num_row_groups):
        edges = metadata.row_group(group).column(place).statistics
        if edges is None or not edges.has_min_max or (edges.max >= within.low and edges.min < within.high):
            found.append(group)
    return found


@contextmanager
def _opened(folder: Folder, name: str) -> Iterator[pq.ParquetFile]:
    with folder.open(name) as source:
        try:
            yield pq.ParquetFile(source)
        except (pa.ArrowException, KeyError, ValueError) as error:
            raise damaged(folder, name, error) from None


def damaged(folder: Folder, name: str, error: Exception) -> WorkError:
    """The error of a file that cannot be read again."""
    reason = " ".join(str(error).split())[:200]
    return WorkError(f"{folder.path(name)}: is damaged ({reason}); remove it and run the same command again")
