"""Which documents make up which pack, and in which order the packs are trained on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A plan in columns: one row per packed document, pack by pack in step order.

    Inside a pack, documents stand in ascending order of ``document`` and lie one after the other from position 0: a
    document starts where the aligned length of the one before it ends. The rows of pack p are
    ``pack_edges[p]:pack_edges[p + 1]``, so packs can neither overlap nor lose a row.

    Attributes:
        seq_len: tokens of every pack, padding included.
        document: index of the document in the table of measured documents.
        start: position of the document's first token in its pack.
        length: real tokens.
        aligned_length: tokens that the document takes up, its padding at the end included.
        cost: cost of each pack in GFLOP, in step order.
        pack_edges: the first row of each pack, then the number of rows. Packs are numbered from 0 in step order.
    """

    seq_len: int
    document: Int64[np.ndarray, "docs"]
    start: Int64[np.ndarray, "docs"]
    length: Int64[np.ndarray, "docs"]
    aligned_length: Int64[np.ndarray, "docs"]
    cost: Float64[np.ndarray, "packs"]
    pack_edges: Int64[np.ndarray, "packs_plus_1"]

    @property
    def n_packs(self) -> int:
        return len(self.pack_edges) - 1

    @property
    def n_documents(self) -> int:
        return len(self.document)

    @property
    def pack_id(self) -> Int64[np.ndarray, "docs"]:
        """Each document's pack."""
        return np.repeat(np.arange(self.n_packs), np.diff(self.pack_edges))

    def rows(self, pack_id: int) -> slice:
        """The rows of one pack."""
        return slice(int(self.pack_edges[pack_id]), int(self.pack_edges[pack_id + 1]))
