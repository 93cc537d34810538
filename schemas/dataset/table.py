"""A table of a dataset: what its columns are declared to be, and the one way to open its file.

A table may come from a stranger, or from a bad disk: some kilobytes of Parquet can claim billions of rows, and a short
dictionary values of gigabytes. So what the footer says is held against the declaration, against the manifest, and
against the size of the file, before anything of it is decoded.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Int64

from preshard.schemas.errors import FormatError, PreshardError, TableInvalid

LARGEST = 2**63 - 1

ROWS_IN_A_BYTE = 8
"""Most rows of a table for each byte of its file: a pack's checksum, or a document's id, takes a byte or more."""

MOST_GROUPS, LEAST_ROWS = 1024, 64
"""Row groups that any table may have, and rows of each of those beyond: each costs as much as a thousand rows."""

MOST_GROUP_ROWS, MOST_GROUP_BYTES = 1 << 20, 1 << 30
"""Rows of a row group, and bytes that it takes in memory: three times what the largest that is written has."""

MOST_COLUMNS = 256
"""Columns of any table, with those that a dataset keeps and the parts of lists."""

LARGE_BYTES, SPARE_BYTES = 256 << 20, 64 << 20
"""Bytes from which a table is opened before it is hashed, since a sparse file takes no place; and those of such a table
that may lie outside of its columns."""

_NOTHING: Mapping[str, int] = MappingProxyType({})

_FOOTER_BYTES = 1 << 20
_COLUMN_BYTES = 1 << 10
"""Bytes allowed for a footer, and for each column of a row group with its statistics."""

_TAIL_BYTES = 64 << 10
"""Bytes of a file that are read first, as Arrow does: most footers are shorter."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Column:
    """One column of a table, as writers fill it, readers and ``verify`` check it, and the page of the format lists it.

    Attributes:
        name: its name.
        type: its type.
        means: what a value is.
        nulls: which rows may lack one; empty where none may.
        most: the largest whole number, of a column or of lists of those; the least is 0.
        legal: the values that there may be; empty where any may.
        length: the column of the same row that says how many numbers each list has; empty where there are no lists.
    """

    name: str
    type: pa.DataType
    means: str
    nulls: str = ""
    most: int = LARGEST
    legal: tuple[str, ...] = ()
    length: str = ""

    def faults(
        self, values: pa.ChunkedArray | pa.Array, lengths: pa.ChunkedArray | pa.Array | pa.Scalar | None = None
    ) -> Iterator[str]:
        """Faults of values of the column: nulls, numbers out of range, unknown texts, lists of another length.

        Args:
            values: of some rows.
            lengths: of the same rows what :attr:`length` names, or one number for all; None leaves lengths unchecked.
        """
        if values.null_count and not self.nulls:
            yield f"{self.name} has nulls"
        elif self.length:
            yield from self._list_faults(values, lengths)
        elif pa.types.is_integer(self.type):
            yield from self._range_faults(values)
        elif pa.types.is_floating(self.type) and pc.any(pc.invert(pc.is_finite(values))).as_py():
            yield f"{self.name} holds NaN or an infinite number"
        elif self.legal and (unknown := set(pc.unique(values).to_pylist()) - {*self.legal, None}):
            yield f"{self.name} is {min(unknown)!r:.120}; legal are {', '.join(self.legal)}"

    def _range_faults(self, values: pa.ChunkedArray | pa.Array) -> Iterator[str]:
        least, largest = (edge.as_py() for edge in pc.min_max(values).values())
        if least is not None and not 0 <= least <= largest <= self.most:
            yield f"{self.name} is {least if least < 0 else largest}; it must be from 0 to {self.most}"

    def _list_faults(
        self, values: pa.ChunkedArray | pa.Array, lengths: pa.ChunkedArray | pa.Array | pa.Scalar | None
    ) -> Iterator[str]:
        items = pc.list_flatten(values)
        if items.null_count:
            yield f"{self.name} has a list with nulls in it"
            return
        yield from self._range_faults(items)
        if lengths is not None and pc.any(pc.not_equal(pc.list_value_length(values), lengths)).as_py():
            yield f"{self.name} has a list that is not as long as {self.length} says"


Columns = tuple[Column, ...]


def number(name: str, means: str, *, most: int = LARGEST, nulls: str = "") -> Column:
    """A column of whole numbers."""
    return Column(name=name, type=pa.int64(), means=means, most=most, nulls=nulls)


def numbers(means: str, *names: str, most: int = LARGEST, nulls: str = "") -> Columns:
    """Columns of whole numbers that are described together."""
    return tuple(number(name, means, most=most, nulls=nulls) for name in names)


def text(name: str, means: str, legal: tuple[str, ...] = ()) -> Column:
    """A column of text."""
    return Column(name=name, type=pa.string(), means=means, legal=legal)


def schema_of(columns: Iterable[Column]) -> pa.Schema:
    """The columns as Arrow names them."""
    return pa.schema([(column.name, column.type) for column in columns])


def faults_of(
    part: pa.RecordBatch | pa.Table, declared: Mapping[str, Column], known: Mapping[str, int] = _NOTHING
) -> Iterator[str]:
    """Faults of some columns of some rows of a table.

    Args:
        part: the columns, of which those that are not declared may hold anything.
        declared: the table's columns by their names.
        known: values of columns that are not in the part, where one is the same in every row.
    """
    names = set(part.schema.names)
    for name in part.schema.names:
        column = declared.get(name)
        if column is not None:
            here = part.column(column.length) if column.length in names else None
            lengths = pa.scalar(known[column.length]) if column.length in known else here
            yield from column.faults(part.column(name), lengths)


@contextlib.contextmanager
def table_errors(name: str, error: type[FormatError] = TableInvalid, remedy: str = "") -> Iterator[None]:
    """Raises whatever reading a table raises, as one line of the table.

    Args:
        name: the table's.
        error: what is raised.
        remedy: what else is said of bytes that are no table.

    Raises:
        FormatError: of that kind: the bytes are no such table, or are more than fit in memory.
        OSError: the file cannot be read, by the operating system or the store that holds it.
    """
    try:
        yield
    except PreshardError:
        raise
    except MemoryError as found:
        raise error(name, "takes more memory to read than there is") from found
    except OSError as found:
        if found.errno is not None:  # those of Parquet have no number
            reason = found.strerror or type(found).__name__
            raise type(found)(found.errno, f"{name} cannot be read ({reason})") from None
        raise error(name, _unreadable(found) + remedy) from None
    except (pa.ArrowException, ValueError, OverflowError, KeyError, IndexError) as found:
        raise error(name, _unreadable(found) + remedy) from None


def _held_bytes(metadata: pq.FileMetaData) -> int:
    """Bytes of the columns that a footer names."""
    groups = map(metadata.row_group, range(metadata.num_row_groups))
    return sum(
        max(group.column(place).total_compressed_size, 0) for group in groups for place in range(group.num_columns)
    )


def _unreadable(error: Exception) -> str:
    return f"cannot be read as Parquet ({' '.join(str(error).split())[:200]})"


class NumberTable:
    """A table of a dataset, opened for some columns of numbers in it. Not for several threads.

    Texts, whose dictionaries may claim more than there is memory, are read by
    :class:`preshard.schemas.dataset.table_file.TableFile`.

    Args:
        opened: the file, for reading at any place.
        name: how errors name the table.
        columns: what its columns must be, in their order.
        kept: types of columns that may stand behind those, with or without values; None leaves the columns to the
            caller.
        rows: that the manifest gives; None where nothing says it.
        dense: whether the file has a byte or more for each few rows, and each row group many rows, as all tables do
            whose rows name something; the caller says how many there are of others.
        metadata: the file's footer, where it was read and checked before.
        error: what is raised of its bytes.
        remedy: what else is said where they are no table.
        checksums: whether pages have checksums that are checked.
        sparing: whether reading takes little memory and no threads, rather than few requests to a store.

    Attributes:
        metadata: the footer.
        schema: the columns.

    Raises:
        TableInvalid: it is not Parquet, has other columns or another number of rows, or claims more than its bytes can
            hold; also while it is read.
        OSError: the file cannot be read.
    """

    def __init__(
        self,
        opened: Any,
        name: str,
        columns: Columns,
        *,
        kept: Sequence[pa.DataType] | None = (),
        rows: int | None = None,
        dense: bool = True,
        metadata: pq.FileMetaData | None = None,
        error: type[FormatError] = TableInvalid,
        remedy: str = "",
        checksums: bool = False,
        sparing: bool = False,
    ) -> None:
        self.name, self._error, self._opened, self._sparing = name, error, opened, sparing
        self._remedy = remedy
        with self._errors():
            known = metadata is not None
            metadata = metadata or self._read_footer(rows, dense=dense)
            settings: Any = {"pre_buffer": not sparing, "page_checksum_verification": checksums}
            self._file = pq.ParquetFile(opened, metadata=metadata, **settings)
            self.metadata: pq.FileMetaData = self._file.metadata
            self.schema: pa.Schema = self._file.schema_arrow
            if not known:
                self._check_columns(columns, kept)
                self._check_size(rows, dense=dense)
        self._settings = settings
        self._declared = {column.name: column for column in columns}

    def _errors(self) -> contextlib.AbstractContextManager[None]:
        return table_errors(self.name, self._error, self._remedy)

    def close(self) -> None:
        """Closes the file."""
        self._file.close(force=True)

    @property
    def n_rows(self) -> int:
        return int(self.metadata.num_rows)

    @property
    def n_groups(self) -> int:
        return int(self.metadata.num_row_groups)

    def read(
        self,
        groups: Iterable[int] | None = None,
        columns: Sequence[str] | None = None,
        *,
        checked: bool = True,
        known: Mapping[str, int] = _NOTHING,
    ) -> pa.Table:
        """Some row groups, or all.

        Args:
            groups: those that are wanted, by their numbers.
            columns: those that are wanted; by default all.
            checked: whether values are held against the declaration.
            known: values of other columns, where one is the same in every row, which lists are as long as.
        """
        wanted = list(range(self.n_groups) if groups is None else groups)
        names = self.schema.names if columns is None else list(columns)
        with self._errors():
            found = self._columns(wanted, names)
            found.validate(full=True)
        if checked:
            self.check(found, known)
        return found

    def _columns(self, groups: list[int], names: list[str]) -> pa.Table:
        assert pa.string() not in (self.schema.field(name).type for name in names), "texts are not limited here"
        return self._file.read_row_groups(groups, columns=names, use_threads=not self._sparing)

    def check(self, part: pa.RecordBatch | pa.Table, known: Mapping[str, int] = _NOTHING) -> None:
        """Raises TableInvalid: values are not what the declaration says of their columns."""
        for fault in faults_of(part, self._declared, known):
            raise self._error(self.name, fault)

    def _read_footer(self, rows: int | None, *, dense: bool) -> pq.FileMetaData:
        """The footer, which is not read where it is longer than so many rows need. A store is asked once, as a rule."""
        size = self._opened.size()
        tail = self._opened.read_at(min(size, _TAIL_BYTES), max(size - _TAIL_BYTES, 0))
        footer = int.from_bytes(tail[-8:-4], "little") + 8
        groups = MOST_GROUPS + min(size if rows is None else rows, size) // (LEAST_ROWS if dense else 1)
        most = _FOOTER_BYTES + groups * 64 * _COLUMN_BYTES
        if tail[-4:] == b"PAR1" and footer > most:
            raise self._error(self.name, f"has a footer of {footer:,} bytes; at most {most:,} are legal")
        if len(tail) < footer <= size:
            tail = self._opened.read_at(footer, size - footer)
        return pq.read_metadata(pa.BufferReader(tail))

    def _check_columns(self, columns: Columns, kept: Sequence[pa.DataType] | None) -> None:
        if self.metadata.num_columns > MOST_COLUMNS:
            raise self._error(self.name, f"has {self.metadata.num_columns:,} columns; at most {MOST_COLUMNS} are legal")
        if kept is None or self.schema.equals(schema_of(columns)):
            return
        found = list(self.schema)
        first, behind = found[: len(columns)], found[len(columns) :]
        if not pa.schema(first).equals(schema_of(columns)) or any(each.type not in kept for each in behind):
            has, asked = [each.name for each in found], [column.name for column in columns]
            raise self._error(self.name, f"has the columns {has!r:.400}, not {asked!r:.400} with their types")

    def _check_size(self, rows: int | None, *, dense: bool) -> None:
        metadata, size = self.metadata, self._opened.size()
        if rows is not None and metadata.num_rows != rows:
            raise self._error(self.name, f"has {metadata.num_rows} rows; the manifest says {rows}")
        if dense and metadata.num_rows > ROWS_IN_A_BYTE * size:
            raise self._error(self.name, f"claims {metadata.num_rows:,} rows in {size:,} bytes")
        if dense and metadata.num_row_groups > MOST_GROUPS + metadata.num_rows // LEAST_ROWS:
            has = f"has {metadata.num_row_groups:,} row groups of {metadata.num_rows:,} rows"
            raise self._error(self.name, f"{has}; legal are {MOST_GROUPS}, and one for each {LEAST_ROWS} rows more")
        if size > LARGE_BYTES and (spare := size - _held_bytes(metadata)) > SPARE_BYTES:
            raise self._error(self.name, f"has {spare:,} of its {size:,} bytes outside of its columns")
        total = 0
        for number in range(metadata.num_row_groups):
            group = metadata.row_group(number)
            total += group.num_rows
            if not 0 <= group.num_rows <= MOST_GROUP_ROWS or not 0 <= group.total_byte_size <= MOST_GROUP_BYTES:
                what = f"row group {number} claims {group.num_rows:,} rows in {group.total_byte_size:,} bytes"
                most = f"{MOST_GROUP_ROWS:,} rows and {MOST_GROUP_BYTES:,} bytes"
                raise self._error(self.name, f"{what}; at most {most} are legal")
        if total != metadata.num_rows:
            raise self._error(self.name, f"has row groups of {total} rows together, not of {metadata.num_rows}")


def row_group_edges(metadata: Any) -> Int64[np.ndarray, "row_groups_plus_1"]:
    """The first row of each row group of a Parquet file, then the number of rows.

    Args:
        metadata: the file's footer, a ``pyarrow.parquet.FileMetaData``.
    """
    sizes = [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
    edges: Int64[np.ndarray, "row_groups_plus_1"] = np.cumsum([0, *sizes])
    return edges
