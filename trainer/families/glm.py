"""GLM-4.1V, GLM-4.5V, GLM-4.6V and GLM-OCR: patches of the Qwen-VL models, each pair of frames an image."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from preshard.trainer.families.family import Features, Inputs, ModelFamily, has_transformers, move_to_model
from preshard.trainer.families.qwen import PLACES, cut_squares, join_kinds, make_smallest, normalise_squares


def _encode(core: Any, inputs: Inputs) -> Features:
    pixels, grids = join_kinds(inputs)
    # The encoder takes each pair of frames as an image.
    pairs = grids.repeat_interleave(grids[:, 0], dim=0)
    pairs[:, 0] = 1
    pixels, on_device = (move_to_model(core, each) for each in (pixels, pairs))
    given = _places(core, pairs) if has_transformers(PLACES) else {}
    # the model's own call splits rows by sizes that it reads on the device
    rows: Tensor = core.visual(pixels.to(core.visual.dtype), on_device, return_dict=True, **given).pooler_output
    return rows


def _places(core: Any, pairs: Tensor) -> dict[str, Any]:
    """Values that the encoder would read of the grids on the device."""
    from transformers.vision_utils import get_vision_cu_seqlens, get_vision_position_ids

    edges, places = get_vision_cu_seqlens(pairs), get_vision_position_ids(pairs, core.visual.spatial_merge_size)
    on_device = {"cu_seqlens": move_to_model(core, edges), "position_ids": move_to_model(core, places)}
    return {**on_device, "max_seqlen": int(edges.diff().max()), "edges": edges}


MODELS = dict.fromkeys(
    ("glm4v", "glm4v_moe", "glm46v", "glm_ocr"),
    ModelFamily(
        cut=cut_squares, normalise=normalise_squares, encode=_encode, stand_in=make_smallest, side_by_side=True
    ),
)
