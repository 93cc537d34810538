"""Which units each CP rank encodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from preshard.schemas.boundaries import image_edges
from preshard.schemas.layout import RankImages, boundaries_from_edges


def image_boundaries(
    loads: Int64[np.ndarray, "units"],
    cum_image_bounds: Int64[np.ndarray, "units"],
    cum_token_pooling_bounds: Int64[np.ndarray, "units"],
    cp_sizes: Sequence[int],
) -> dict[str, dict[str, RankImages]]:
    """Optimal image boundaries of a pack for each CP size.

    Args:
        loads: the encoder's work for each unit, an integer.
        cum_image_bounds: crops up to and including each unit.
        cum_token_pooling_bounds: pooled rows up to and including each unit.
        cp_sizes: numbers of ranks.
    """
    return {
        str(size): boundaries_from_edges(image_edges(loads, size), cum_image_bounds, cum_token_pooling_bounds)
        for size in sorted(cp_sizes)
    }
