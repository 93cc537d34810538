"""Rows of a table by their place or by their pack, a few row groups of it in memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from cachetools import LRUCache
from jaxtyping import Int64

from preshard.packer_service.shards.store import Folder
from preshard.schemas.tables import row_group_edges

KEPT_GROUPS = 3
"""Row groups in memory: those that the rows of one shard lie in, and one more."""


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


class PackSpan(NamedTuple):
    """Neighbouring rows of ``documents.parquet``, and the least and the largest of their packs."""

    first_row: int
    end_row: int
    least: int
    most: int


class DocumentRows:
    """Rows of ``documents.parquet`` by pack, also where they are out of order.

    Args:
        reader: reads the table.
        spans: of all its rows.
    """

    def __init__(self, reader: RowReader, spans: Sequence[PackSpan]) -> None:
        self._reader = reader
        self._spans: Int64[np.ndarray, "spans 4"] = np.array(spans, np.int64).reshape(-1, 4)

    def of_packs(self, first: int, end: int) -> list[dict[str, Any]]:
        """The rows of the packs ``[first, end)``: by pack, those of one pack as they stand in the table."""
        _, _, least, most = self._spans.T
        found = []
        for first_row, end_row, *_ in self._spans[(least < end) & (most >= first)].tolist():
            span = self._reader.rows(first_row, end_row)
            packs = span["pack_id"].to_numpy()
            inside = np.flatnonzero((packs >= first) & (packs < end))
            if len(inside):
                found.append(_taken(span, inside))
        if not found:
            return []
        rows: list[dict[str, Any]] = pa.concat_tables(found).to_pylist()
        return sorted(rows, key=lambda row: row["pack_id"])


def _taken(table: pa.Table, rows: Int64[np.ndarray, "some"]) -> pa.Table:
    """Some rows; of neighbours no copy is made."""
    first, last = int(rows[0]), int(rows[-1])
    return table.slice(first, len(rows)) if last - first + 1 == len(rows) else table.take(pa.array(rows))
