"""Rows (ring_rank, start, length) of layouts that deal whole blocks."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32

from preshard.schemas.schemes import merge_adjacent


def runs_from_owners(owners: Int32[np.ndarray, "blocks"], block_size: int) -> Int32[np.ndarray, "runs 3"]:
    """The layout in which block b of ``block_size`` tokens is on rank ``owners[b]``, in natural order on each rank."""
    blocks = np.argsort(owners, kind="stable").astype(np.int64)
    sizes = np.full(len(blocks), block_size, np.int64)
    return merge_adjacent(np.stack([owners[blocks].astype(np.int64), blocks * block_size, sizes], axis=1))
