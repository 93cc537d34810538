"""The layout of consecutive equal ranges."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int32

from schemas.errors import LayoutError


def contiguous_runs(seq_len: int, ring_degree: int) -> Int32[np.ndarray, "ring 3"]:
    """Rank r holds the r-th of ``ring_degree`` equal ranges.

    Raises:
        LayoutError: ``seq_len`` does not divide.
    """
    if seq_len % ring_degree:
        raise LayoutError(
            f"contiguous at ring degree {ring_degree}: seq_len {seq_len} is not a multiple of {ring_degree}"
        )
    length, ranks = seq_len // ring_degree, np.arange(ring_degree)
    return np.stack([ranks, ranks * length, np.full(ring_degree, length)], axis=1).astype(np.int32)
