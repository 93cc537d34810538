"""Rows brought together by their document's id, so that what one id has to do with itself is seen without all ids.

Rows of one id have one hash, so each range of hashes can be checked by itself. Few rows stay in memory; of many, each
range waits in a file of its own on this machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import pyarrow as pa

from preshard.packer_service.runtime.scratch import scratch_folder
from preshard.schemas.dataset.document_ids import hash_ids

PARTITION_ROWS = 1_000_000
"""Rows that are looked at together: some hundred MiB with what grouping them takes."""

MOST_PARTITIONS = 256
"""Files that are open at once; systems allow a process a thousand."""

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def count_partitions(rows: int, rows_each: int = PARTITION_ROWS) -> int:
    """How many partitions so many rows take."""
    return min(max(1, -(-rows // rows_each)), MOST_PARTITIONS)


class IdPartitions:
    """Columns of a table by ranges of the hash of ``doc_id``; rows of a range stand in the order in which they came.

    Args:
        schema: the columns that are kept, ``doc_id`` among them.
        partitions: how many ranges there are; a single one is kept in memory.
    """

    def __init__(self, schema: pa.Schema, partitions: int) -> None:
        self.schema, self.partitions = schema, partitions
        self._few: list[pa.Table] = []
        self._folder: str | None = None
        self._sinks: dict[int, Any] = {}
        self._open, self._until_exit = ExitStack(), ExitStack()

    def add(self, part: pa.Table) -> None:
        """Adds rows; columns that are not kept are left out."""
        part = part.select(self.schema.names)
        if self._folder is None:
            self._few.append(part)
            return
        numbers = (hash_ids(part["doc_id"]) >> np.uint64(32)) * np.uint64(self.partitions) >> np.uint64(32)
        order = np.argsort(numbers, kind="stable")
        edges = np.searchsorted(numbers[order], np.arange(self.partitions + 1))
        ordered = part.take(pa.array(order)).combine_chunks()
        for number in np.flatnonzero(np.diff(edges)).tolist():
            self._sink(number).write_table(ordered.slice(edges[number], edges[number + 1] - edges[number]))

    def tables(self) -> Iterator[pa.Table]:
        """Each range's rows, one range in memory at a time; no row is added after this."""
        self._open.close()
        for number in range(self.partitions):
            yield self._table(number)

    def _table(self, number: int) -> pa.Table:
        if self._folder is None:
            return pa.concat_tables([self.schema.empty_table(), *self._few])
        path = self._path(number)
        if not path.exists():
            return self.schema.empty_table()
        with pa.OSFile(str(path)) as file, pa.ipc.open_stream(file) as stream:
            return stream.read_all().combine_chunks()

    def _sink(self, number: int) -> Any:
        if number not in self._sinks:
            file = self._open.enter_context(pa.OSFile(str(self._path(number)), "wb"))
            self._sinks[number] = self._open.enter_context(pa.ipc.new_stream(file, self.schema, options=_OPTIONS))
        return self._sinks[number]

    def _path(self, number: int) -> Path:
        assert self._folder is not None
        return Path(self._folder) / f"{number}.arrow"

    def __enter__(self) -> IdPartitions:
        if self.partitions > 1:
            self._folder = self._until_exit.enter_context(scratch_folder("preshard-verify-"))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()
        self._until_exit.close()


@contextmanager
def partitioned(schemas: dict[str, pa.Schema], rows: int, rows_each: int) -> Iterator[dict[str, IdPartitions]]:
    """Tables by the same ranges.

    Args:
        schemas: the columns that are kept of each table.
        rows: about how many rows the largest has.
        rows_each: rows that are looked at together.
    """
    count = count_partitions(rows, rows_each)
    with ExitStack() as stack:
        yield {name: stack.enter_context(IdPartitions(schema, count)) for name, schema in schemas.items()}
