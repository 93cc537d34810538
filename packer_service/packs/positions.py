"""Positions with three axes (time, height, width), as models with multimodal rotary embeddings number them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from jaxtyping import Float32, Int32, Int64


def grid_positions(
    unit_ids: Int32[np.ndarray, "doc"],
    grids: Int64[np.ndarray, "units 3"],
    media: Int64[np.ndarray, "units"],
    time_steps: Float32[np.ndarray, "units"],
    merge: int,
) -> Int32[np.ndarray, "3 doc"]:
    """Positions of a document that stands alone.

    Text counts up on all three axes together. Rows that follow each other without a token in between and belong to the
    same image or video form a block: from the position that text would have next, rows count along the block's time,
    height and width. Text after a block goes on from its larger side of height and width (Wang et al. 2024, Qwen2-VL,
    section 2.1).

    Args:
        unit_ids: the unit that a row belongs to, -1 for any other token.
        grids: each unit's patches along time, height and width; a row stands for ``merge`` x ``merge`` of them.
        media: the number of the image or video that each unit belongs to.
        time_steps: how much the temporal position grows from unit to unit of a block; it is rounded down.
        merge: patches along one side of a row's square.
    """
    positions = np.empty((3, len(unit_ids)), np.int32)
    media_of = np.where(unit_ids >= 0, media[unit_ids] if len(media) else 0, -1)
    changes = np.flatnonzero(media_of[1:] != media_of[:-1]) + 1
    edges = [0, *changes.tolist(), len(unit_ids)] if len(unit_ids) else []
    following = 0
    for start, end in pairwise(edges):
        if media_of[start] < 0:
            positions[:, start:end] = np.arange(following, following + end - start)
            following += end - start
            continue
        unit = unit_ids[start]
        height, width = grids[unit, 1] // merge, grids[unit, 2] // merge
        time, row = np.divmod(np.arange(end - start), height * width)
        step = np.float32(time_steps[unit])
        positions[0, start:end] = following + (time.astype(np.float32) * step).astype(np.int64)
        positions[1, start:end] = following + row // width
        positions[2, start:end] = following + row % width
        following += int(max(height, width))
    return positions
