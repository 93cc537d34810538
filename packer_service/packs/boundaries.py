"""Which units' crops each CP rank encodes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64

from packer_service.layout.images import image_edges
from packer_service.packs.rendered import RenderedDocument
from schemas.layout import RankImages, boundaries_from_edges


def cumulative_bounds(
    documents: Sequence[RenderedDocument], pooled_per_crop: int
) -> tuple[Int64[np.ndarray, "units"], Int64[np.ndarray, "units"]]:
    """Crops, and pooled rows, up to and including each unit of a pack."""
    crops = np.concatenate([np.zeros(0, np.int64), *(document.unit_crops for document in documents)])
    images = np.cumsum(crops)
    return images, images * pooled_per_crop


def image_boundaries(
    cum_image_bounds: Int64[np.ndarray, "units"],
    cum_token_pooling_bounds: Int64[np.ndarray, "units"],
    cp_sizes: Sequence[int],
) -> dict[str, dict[str, RankImages]]:
    """Optimal image boundaries of a pack for each CP size.

    The load of a unit is its number of crops. Every crop has the same number of patches and pooled rows, so any weights
    on encoder and connector give the same boundaries.
    """
    crops = np.diff(cum_image_bounds, prepend=0)
    return {
        str(size): boundaries_from_edges(image_edges(crops, size), cum_image_bounds, cum_token_pooling_bounds)
        for size in sorted(cp_sizes)
    }
