"""Tables of the work folder in Arrow files, which are read batch by batch; their columns, as narrow as can be."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from preshard.packer_service.job.measured import damaged
from preshard.packer_service.shards.store import Folder

BATCH_ROWS = 16_384
"""Rows of a batch: about a megabyte and a half, of which a reader takes at most two without need."""

MAX_STRING_BYTES = 2**30
"""Most bytes of a column of strings whose offsets stay 32 bits wide: twice as many do not fit into one array."""

_OPTIONS = pa.ipc.IpcWriteOptions(compression="lz4")


def narrow(column: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """The same values in the smallest integers that hold them; a column of nulls takes no memory at all."""
    if column.null_count == len(column):
        return pa.nulls(len(column))
    if not pa.types.is_signed_integer(column.type):
        return column
    least, most = pc.min_max(column).as_py().values()
    widths = (pa.int8(), pa.int16(), pa.int32(), pa.int64())
    return column.cast(next(w for w in widths if -(1 << w.bit_width - 1) <= least and most < 1 << w.bit_width - 1))


def taken(columns: dict[str, pa.ChunkedArray], rows: np.ndarray) -> pa.Table:
    """Rows of columns. It empties the dictionary, so that no more than one column is there twice at a time."""
    found = dict[str, pa.Array | pa.ChunkedArray]()
    for name in list(columns):
        column = columns.pop(name).unify_dictionaries()
        if pa.types.is_string(column.type) and column.nbytes > MAX_STRING_BYTES:
            column = column.cast(pa.large_string())
        found[name] = column.combine_chunks().take(pa.array(rows))
    return pa.table(found)


def write_batches(folder: Folder, name: str, table: pa.Table, firsts: Sequence[int]) -> None:
    """Writes a table as an Arrow file whose batches begin at the given rows."""
    with folder.writer(name) as sink, pa.ipc.new_file(pa.PythonFile(sink, "w"), table.schema, options=_OPTIONS) as file:
        for first, end in zip(firsts, [*firsts[1:], len(table)], strict=False):
            for batch in table.slice(first, end - first).combine_chunks().to_batches():
                file.write_batch(batch)


@contextmanager
def opened(folder: Folder, name: str) -> Iterator[Any]:
    """An Arrow file for reading batch by batch.

    Raises:
        WorkError: it is damaged.
    """
    with folder.open(name) as file:
        try:
            yield pa.ipc.open_file(file)
        except (pa.ArrowException, KeyError, ValueError) as error:
            raise damaged(folder, name, error) from None
