"""Units made by hand, for documents made by hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from preshard.packer_service.packs.units import Units


def made_units(edges: Sequence[tuple[int, int]], crops: Sequence[int] | None = None) -> Units:
    """Frames, or still images of several crops: four patches in a crop, one pooled row for each token of the range.

    Args:
        edges: half-open range of each unit's tokens.
        crops: crops of each unit, one by default.
    """
    ranges = np.array(edges, np.int64).reshape(-1, 2)
    pictures = np.array(crops if crops is not None else [1] * len(edges), np.int64)
    side = np.full(len(edges), 2)
    return Units(
        kinds=(pictures == 1).astype(np.int64),
        edges=ranges,
        grids=np.stack([pictures, side, side], axis=1),
        patches=4 * pictures,
        rows=ranges[:, 1] - ranges[:, 0],
        crops=pictures,
        loads=pictures,
        media=np.arange(len(edges)),
        time_steps=np.zeros(len(edges)),
        numbers=np.arange(len(edges)),
    )
