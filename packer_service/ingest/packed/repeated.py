"""The documents of a dataset that lie in several places, or of which something is lost: 48 bytes for each place.

All other documents have their one place in the row that names them, so a dataset of millions of them keeps nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int64, UInt64

from schemas.document_ids import hash_ids

NEEDED = ("doc_id", "piece", "copy_number", "epoch", "truncated_tokens")
"""Columns of ``documents.parquet`` that are looked at."""

_Hashes = UInt64[np.ndarray, "ids 2"]


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatedRows:
    """The rows of ``documents.parquet`` of one document's first copy, in the order of its pieces.

    ``is_missing`` says that a piece was not written, ``truncated`` how many tokens are lost behind each piece.
    """

    rows: tuple[int, ...]
    pieces: tuple[int, ...]
    truncated: tuple[int, ...]
    is_missing: bool


class RepeatedDocuments:
    """Looks up documents that were split, or of which a copy or a piece could not be written.

    Args:
        passed: gives the columns :data:`NEEDED` of all rows in order, some at a time; called up to twice.
        lost: ids of documents that could not be written, in whole or in part.
        was_split: whether documents may be in pieces.
    """

    def __init__(self, passed: _Passed, lost: Sequence[str], *, was_split: bool) -> None:
        self._passed, self._was_split, self._lost = passed, was_split, frozenset(lost)

    def of(self, ids: Sequence[str]) -> list[RepeatedRows | None]:
        """What is known of some documents; None for one that lies whole in one place, or in copies of it alone."""
        if not len(self._table.keys):
            return [None] * len(ids)
        keys = _hashed(pa.array(ids, pa.string()))
        first, end = (np.searchsorted(self._table.keys[:, 0], keys[:, 0], side) for side in ("left", "right"))
        return [self._found(*place, keys[n], ids[n]) for n, place in enumerate(zip(first, end, strict=True))]

    def _found(self, first: int, end: int, key: np.ndarray, doc_id: str) -> RepeatedRows | None:
        table = self._table
        own = np.arange(first, end)[table.keys[first:end, 1] == key[1]]
        if not len(own):
            return None
        own = own[(table.copies[own] == table.copies[own].min(axis=0)).all(axis=1)] if self._is_lost(doc_id) else own
        pieces = tuple(table.pieces[own].tolist())
        is_missing = self._was_split and (pieces != tuple(range(len(pieces))) or self._is_lost(doc_id))
        return RepeatedRows(
            rows=tuple(table.rows[own].tolist()),
            pieces=pieces,
            truncated=tuple(table.truncated[own].tolist()),
            is_missing=is_missing,
        )
