"""``documents.parquet``: whether its rows are in order, and those of a pack; and the rows of any table by number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache

from preshard.packer_service.shards.store import Folder
from preshard.packer_service.verify.verdict import Finding
from preshard.schemas.errors import DocumentRowInvalid
from preshard.schemas.tables import row_group_edges

KEPT_GROUPS = 3
"""Row groups in memory: those that the rows of one shard lie in, and one more."""


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
        """What is wrong with the rows."""
        if self._unsorted is not None:
            yield DocumentRowInvalid, f"row {self._unsorted} is out of order; rows are sorted by pack_id and start"
        if self._outside is not None:
            row, pack = self._outside
            yield DocumentRowInvalid, f"row {row} has pack_id {pack} of {self._n_packs} packs"


class RowReader:
    """Rows of a table by their numbers."""

    def __init__(self, folder: Folder, name: str) -> None:
        self._files = ExitStack()
        self._file = pq.ParquetFile(self._files.enter_context(folder.open(name)))
        self._edges = row_group_edges(self._file.metadata)
        self._kept: LRUCache[int, pa.Table] = LRUCache(KEPT_GROUPS)

    def rows(self, first: int, end: int) -> pa.Table:
        """The rows ``[first, end)``, as far as they are there."""
        found = [self._file.schema_arrow.empty_table()]
        end = min(end, int(self._edges[-1]))
        number = int(np.searchsorted(self._edges, first, side="right")) - 1
        while first < end:
            before, behind = self._edges[number : number + 2].tolist()
            stop = min(end, behind)
            found.append(self._group(number).slice(first - before, stop - first))
            first, number = stop, number + 1
        return pa.concat_tables(found)

    def _group(self, number: int) -> pa.Table:
        if number not in self._kept:
            self._kept[number] = self._file.read_row_group(number)
        return self._kept[number]

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
