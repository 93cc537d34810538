"""A table, read once in parts and checked as it passes, and its rows again: by number, or by pack."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from cachetools import LRUCache

from preshard.packer_service.shards.store import Folder
from preshard.packer_service.verify.verdict import Faults, Finding
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.measures import MEASURES, MEASURES_FILE, MeasureOrder
from preshard.schemas.dataset.table import LARGE_BYTES, row_group_edges
from preshard.schemas.dataset.table_file import TableFile
from preshard.schemas.errors import DocumentRowInvalid, TableChanged, TableInvalid
from preshard.schemas.manifest import TableEntry
from preshard.schemas.tables import DECLARED, documents_columns, open_table

PART_ROWS = 65_536
"""Rows of a part: a row group, as the writer makes them."""

KEPT_ROWS = 3 * PART_ROWS
"""Rows of row groups in memory: those of two parts that the rows of one shard lie in, and of one more."""


def stored_table(opened: Any, name: str, keep_columns: Iterable[tuple[str, str]] | None = None) -> TableFile:
    """A table as :func:`preshard.schemas.tables.open_table` opens it, whose rows and values are for rules of their own.

    Raises:
        TableInvalid: it is not Parquet, has other columns, or claims more than its bytes can hold.
    """
    return open_table(opened, name, keep_columns=keep_columns)


def check_bytes(folder: Folder, entry: TableEntry) -> Iterator[Finding]:
    """A table has the bytes that the manifest says. One of another size, or large and no table, is not hashed: it may
    have no end."""
    size = folder.size(entry.name)
    if size != entry.bytes:
        yield TableChanged, f"has {size} bytes; the manifest says {entry.bytes}"
        return
    if size > LARGE_BYTES and not _can_be_opened(folder, entry.name):
        return  # whoever reads it says why
    with folder.stream(entry.name) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if sha256 != entry.sha256:
        yield TableChanged, f"has the SHA-256 {sha256}; the manifest says {entry.sha256}"


def _can_be_opened(folder: Folder, name: str) -> bool:
    try:
        with folder.open(name) as file:
            stored_table(file, name)
    except TableInvalid:
        return False
    return True


class TableScan:
    """One pass over a table.

    Attributes:
        rows: rows that passed.
        usable: whether the table could be read to its end, and all of its values are legal.
    """

    def __init__(self, folder: Folder, entry: TableEntry, config: PackConfig) -> None:
        self.folder, self.entry = folder, entry
        self._kept = config.keep_columns
        self._columns = documents_columns(self._kept) if entry.name == "documents.parquet" else DECLARED[entry.name]
        self.rows, self.usable = 0, False
        self._wrong: dict[str, str] = {}

    def parts(self, faults: Faults) -> Iterator[pa.Table]:
        """The rows, some at a time, as long as their values are legal; what is wrong is added to the faults.

        What they amount to counts only if the table is usable in the end.
        """
        name = self.entry.name
        faults.extend(check_bytes(self.folder, self.entry), name)
        try:
            yield from self._read()
        except (TableInvalid, OSError) as error:
            faults.extend([(TableInvalid, error.detail if isinstance(error, TableInvalid) else str(error))], name)
            return
        if self.rows != self.entry.rows:
            said = f"has {self.rows} rows; the manifest says {self.entry.rows}"
            faults.extend([(TableChanged, said)], name)
        faults.extend([(TableInvalid, fault) for fault in self._wrong.values()], name)
        self.usable = not self._wrong

    def _read(self) -> Iterator[pa.Table]:
        with self.folder.open(self.entry.name) as opened:
            file = stored_table(opened, self.entry.name, self._kept)
            for batch in file.parts(checked=False):
                part = pa.Table.from_batches([batch])
                self.rows += len(part)
                if self._is_legal(part):
                    yield part

    def _is_legal(self, part: pa.Table) -> bool:
        """Whether all values that passed are as the table's declaration says."""
        for column in self._columns:
            for fault in column.faults(part[column.name]):
                self._wrong.setdefault(column.name, fault)
        return not self._wrong


class PackSpan(NamedTuple):
    """Neighbouring rows of ``documents.parquet``, and the least and the largest of their packs."""

    first_row: int
    end_row: int
    least: int
    most: int


class DocumentOrder:
    """Whether rows are sorted by pack and start, and their packs exist; rows come in parts.

    Attributes:
        spans: the packs of each part.
    """

    def __init__(self, n_packs: int) -> None:
        self._n_packs, self._rows, self._last = n_packs, 0, (-(1 << 62), 0)
        self.spans: list[PackSpan] = []
        self._unsorted: int | None = None
        self._outside: tuple[int, int] | None = None

    def add(self, part: pa.Table) -> None:
        """Looks at the next rows."""
        packs, starts = part["pack_id"].to_numpy(), part["start"].to_numpy()
        if not len(packs):
            return
        self.spans.append(PackSpan(self._rows, self._rows + len(packs), int(packs.min()), int(packs.max())))
        outside = np.flatnonzero((packs < 0) | (packs >= self._n_packs))
        if len(outside) and self._outside is None:
            self._outside = self._rows + int(outside[0]), int(packs[outside[0]])
        packs_before = np.concatenate([[self._last[0]], packs[:-1]])
        starts_before = np.concatenate([[self._last[1]], starts[:-1]])
        falls = np.flatnonzero((packs < packs_before) | ((packs == packs_before) & (starts < starts_before)))
        if len(falls) and self._unsorted is None:
            self._unsorted = self._rows + int(falls[0])
        self._last = int(packs[-1]), int(starts[-1])
        self._rows += len(packs)

    def findings(self) -> Iterator[Finding]:
        """Faults of the rows."""
        if self._unsorted is not None:
            yield DocumentRowInvalid, f"row {self._unsorted} is out of order; rows are sorted by pack_id and start"
        if self._outside is not None:
            row, pack = self._outside
            yield DocumentRowInvalid, f"row {row} has pack_id {pack} of {self._n_packs} packs"


def _read_group(file: TableFile, group: int) -> pa.Table:
    return file.read([group], checked=False)


class RowReader:
    """Rows of a table by their numbers.

    Args:
        folder: the dataset.
        name: of the table.
        kept_rows: rows of row groups that stay in memory.
        read: reads a row group; columns that it leaves out are null.
    """

    def __init__(
        self,
        folder: Folder,
        name: str,
        *,
        kept_rows: int = KEPT_ROWS,
        read: Callable[[TableFile, int], pa.Table] = _read_group,
    ) -> None:
        self._files = ExitStack()
        self.file = stored_table(self._files.enter_context(folder.open(name)), name)
        self._edges = row_group_edges(self.file.metadata)
        self._kept: LRUCache[int, pa.Table] = LRUCache(kept_rows, getsizeof=len)
        self._read = read

    @property
    def n_rows(self) -> int:
        return int(self._edges[-1])

    def rows(self, first: int, end: int) -> pa.Table:
        """The rows ``[first, end)``, as far as they are there."""
        return self.joined(self.slices(first, end))

    def joined(self, slices: Iterable[pa.Table]) -> pa.Table:
        """Slices of the table in one, with all of its columns."""
        return pa.concat_tables([self.file.schema.empty_table(), *slices], promote_options="default")

    def slices(self, first: int, end: int) -> Iterator[pa.Table]:
        """The rows ``[first, end)``, as far as they are there, of each row group, as they are read."""
        end = min(end, self.n_rows)
        number = int(np.searchsorted(self._edges, first, side="right")) - 1
        while first < end:
            before, behind = self._edges[number : number + 2].tolist()
            stop = min(end, behind)
            yield self._group(number).slice(first - before, stop - first)
            first, number = stop, number + 1

    def _group(self, number: int) -> pa.Table:
        group = self._kept.get(number)
        if group is None:
            group = self._read(self.file, number)
            if len(group) <= self._kept.maxsize:
                self._kept[number] = group
        return group

    def close(self) -> None:
        self._files.close()


class DocumentRows:
    """Rows of ``documents.parquet`` by pack, also where they are out of order.

    Args:
        reader: reads the table.
        spans: of all its rows.
    """

    def __init__(self, reader: RowReader, spans: Sequence[PackSpan]) -> None:
        self._reader, self._spans = reader, spans

    def of_packs(self, first: int, end: int) -> list[dict[str, Any]]:
        """The rows of the packs ``[first, end)``: by pack, those of one pack as they stand in the table."""
        found: list[dict[str, Any]] = []
        for span in self._spans:
            if span.least < end and span.most >= first:
                rows = self._reader.rows(span.first_row, span.end_row)
                packs = rows["pack_id"].to_numpy()
                found += rows.take(np.flatnonzero((packs >= first) & (packs < end))).to_pylist()
        return sorted(found, key=lambda row: row["pack_id"])


class MeasuresReader:
    """``measures.parquet`` by pack; the row groups of one block of packs are in memory, without columns of nulls."""

    def __init__(self, folder: Folder, faults: Faults, entry: TableEntry, order: MeasureOrder) -> None:
        self._faults, self._order = faults, order
        self._reader: RowReader | None = None
        if folder.is_file(MEASURES_FILE):
            with self._failing():
                kept = order.block_packs * (len(order.groups) + 1)
                self._reader = RowReader(folder, MEASURES_FILE, kept_rows=kept, read=self._read)
                self._check_footer(self._reader.file, entry)

    def of_packs(self, first: int, end: int) -> pa.Table | None:
        """The rows of the packs ``[first, end)``, pack by pack, as far as they are there; None where the table cannot
        be read.
        """
        found = [MEASURES.empty_table()]
        with self._failing():
            while self._reader is not None and first < end:
                packs = self._order.block_of(first)
                stop = min(end, packs.stop)
                found.append(self._of_block(self._reader, packs, first, stop))
                first = stop
        return None if self._reader is None else pa.concat_tables(found).unify_dictionaries()

    def _of_block(self, reader: RowReader, packs: range, first: int, end: int) -> pa.Table:
        n_groups, before = len(self._order.groups), first - packs.start
        rows = [packs.start * n_groups + group * len(packs) + before for group in range(n_groups)]
        slices, places = list[pa.Table](), [np.zeros(0, np.int64)]
        for row in rows:
            of_group = list(reader.slices(row, row + end - first))
            slices += of_group
            places.append(np.arange(sum(map(len, of_group))))
        by_pack = np.argsort(np.concatenate(places), kind="stable")
        # A slice would travel to another process with the whole table behind it.
        return reader.joined(slices).unify_dictionaries().take(pa.array(by_pack))

    def count_surplus(self) -> int:
        """Rows past those of the last pack."""
        return 0 if self._reader is None else max(self._reader.n_rows - self._order.n_rows, 0)

    def _check_footer(self, file: TableFile, entry: TableEntry) -> None:
        if file.metadata.num_rows != entry.rows:
            rows = f"has {file.metadata.num_rows} rows; the manifest says {entry.rows}"
            self._faults.extend([(TableChanged, rows)], MEASURES_FILE)
        found = [file.metadata.row_group(number).num_rows for number in range(file.n_groups)]
        if sum(found) == self._order.n_rows and found != (asked := self._order.row_groups()):
            groups = f"has row groups of {str(found)[:80]} rows, not of {str(asked)[:80]}"
            self._faults.extend([(TableInvalid, groups)], MEASURES_FILE)

    def _read(self, file: TableFile, group: int) -> pa.Table:
        table = _read_group(file, group)
        for name in ("pack_id", "degree"):
            if nulls := table[name].null_count:
                self._faults.extend([(TableInvalid, f"{name} has {nulls} nulls")], MEASURES_FILE)
        return table.select([name for name in table.column_names if table[name].null_count < len(table)])

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except (TableInvalid, pa.ArrowException, OSError, ValueError) as error:
            detail = error.detail if isinstance(error, TableInvalid) else f"cannot be read ({error})"
            self._faults.extend([(TableInvalid, detail)], MEASURES_FILE)
            self.close()

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = None
