"""How many documents a dataset holds, without a list of their ids.

A document has several rows of ``documents.parquet`` when it has pieces, copies or epochs. Its first piece in its first
place stands for it, unless that one was lost in writing: then its other rows are looked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import UInt64

from preshard.schemas.document_ids import hash_ids

PLACE = ("piece", "copy_number", "epoch")
"""Columns that are 0 in the row that stands for a document."""


class DocumentCount:
    """Counts documents while the rows of ``documents.parquet`` and ``rejects.parquet`` pass."""

    def __init__(self) -> None:
        self._firsts, self._rows = 0, 0
        self._lost = list[UInt64[np.ndarray, "some"]]()

    def of_documents(self, parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for part in parts:
            self._rows += len(part)
            self._firsts += pc.sum(_is_first(part)).as_py() or 0
            yield part

    def of_rejects(self, parts: Iterable[pa.Table]) -> Iterator[pa.Table]:
        for part in parts:
            written = part.filter(pc.equal(part["stage"], "write"))
            if len(written):
                self._lost.append(np.unique(hash_ids(written["doc_id"])))
            yield part

    def count(self, again: Callable[[], Iterable[pa.Table]]) -> int:
        """The number of documents with at least one row.

        Args:
            again: reads the rows of ``documents.parquet`` a second time: only needed where documents that have several
                rows lost some of them.
        """
        if not self._lost or self._firsts == self._rows:
            return self._firsts
        lost = np.unique(np.concatenate(self._lost))
        count, left = self._firsts, list[UInt64[np.ndarray, "some"]]()
        for part in again():
            hashes = hash_ids(part["doc_id"])
            of_lost = np.isin(hashes, lost)
            count -= int((of_lost & _is_first(part).to_numpy()).sum())
            left.append(np.unique(hashes[of_lost]))
        return count + len(np.unique(np.concatenate(left))) if left else count


def _is_first(rows: pa.Table) -> pa.ChunkedArray:
    piece, copy_number, epoch = (pc.equal(rows[name], 0) for name in PLACE)
    return pc.and_(piece, pc.and_(copy_number, epoch))
