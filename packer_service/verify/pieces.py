"""Pieces of documents behind which something was cut away, known while shards are read, for 8 bytes a piece."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from preshard.packer_service.verify.verdict import Finding
from preshard.schemas.errors import DocumentRowInvalid

MAY_BE_CUT = "may_be_cut"
"""Says of a row of ``documents.parquet`` whether something of its document may lie behind it."""

_KEY = ("doc_id", "copy_number", "epoch", "piece")


class LaterPieces:
    """Hashes of the pieces that are not the first of their document, and the documents of which one was lost in
    writing.

    Attributes:
        findings: what is wrong with the rows that were marked.
    """

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self._parts: list[np.ndarray] = []
        self._found = np.zeros(0, np.uint64)
        self._lost = set[str]()

    def add_documents(self, part: pa.Table) -> None:
        """Looks at the next rows of ``documents.parquet``."""
        later = part.filter(pc.greater(part["piece"], 0)).select(_KEY)
        if len(later):
            keys = zip(*(column.to_pylist() for column in later.columns), strict=True)
            self._parts.append(np.array([_hash(key) for key in keys], np.uint64))

    def add_rejects(self, part: pa.Table) -> None:
        """Looks at the next rows of ``rejects.parquet``."""
        self._lost.update(part.filter(pc.equal(part["stage"], "write"))["doc_id"].to_pylist())

    def mark(self, rows: Iterable[dict[str, Any]], *, knows_lost: bool) -> Iterator[dict[str, Any]]:
        """Rows of documents with :data:`MAY_BE_CUT`, which each has unless it is known what was lost in writing.

        All rows of both tables must have been looked at.
        """
        if self._parts:
            self._found = np.sort(np.concatenate([self._found, *self._parts]))
            self._parts.clear()
        for row in rows:
            is_followed, lost = self._is_followed(row), row["truncated_tokens"]
            if is_followed and lost:
                found = f"{row['doc_id']!r:.80} has {lost} truncated_tokens in piece {row['piece']}"
                self.findings.append((DocumentRowInvalid, f"{found}, which another piece follows; the last has them"))
            yield {**row, MAY_BE_CUT: is_followed or lost > 0 or not knows_lost or row["doc_id"] in self._lost}

    def _is_followed(self, row: dict[str, Any]) -> bool:
        if not len(self._found):
            return False
        wanted = np.uint64(_hash((row["doc_id"], row["copy_number"], row["epoch"], row["piece"] + 1)))
        at = int(np.searchsorted(self._found, wanted))
        return at < len(self._found) and bool(self._found[at] == wanted)


def _hash(key: Iterable[object]) -> int:
    return int.from_bytes(hashlib.blake2b(repr(tuple(key)).encode("utf-8", "backslashreplace"), digest_size=8).digest())
