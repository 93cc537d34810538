"""Whether a model of ``transformers`` sees the sequences of a pack by itself, and the mask of one that does not."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from preshard.schemas.errors import ReaderError
from preshard.schemas.model.families import FAMILIES
from preshard.schemas.model.languages import language_model
from preshard.trainer.data.batch import RankBatch


def masks_for(batch: RankBatch, model: Any, position_ids: Int64[Tensor, "1 seq"]) -> dict[str, Any]:
    """The mask of a model that does not see sequences by itself.

    Raises:
        ReaderError: there is no model to make it for, or its layers carry a state, which takes kernels that are not
            installed.
    """
    if model is None:
        _check_sees_sequences(batch)
        return {}
    kind, layers = model.config.model_type, getattr(model.config.get_text_config(), "layer_types", None) or ()
    if "linear_attention" in layers and not (find_spec("fla") and find_spec("causal_conv1d")):
        raise ReaderError(
            f"layers of {kind} carry a state, which transformers starts anew at each document with the packages "
            "flash-linear-attention and causal-conv1d alone: install both, or take preshard.models.PackedModel"
        )
    if not language_model(kind).own_mask:
        return {}
    from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

    given: dict[str, Any] = {
        **{"config": model.config, "attention_mask": None, "past_key_values": None, "position_ids": position_ids},
        "inputs_embeds": torch.empty(*position_ids.shape, 0, dtype=model.dtype, device=position_ids.device),
    }
    mask = create_causal_mask(**given)
    if not getattr(model.config, "layer_types", None):
        return {"attention_mask": mask}
    kinds = {"full_attention": mask, "sliding_attention": create_sliding_window_causal_mask(**given)}
    return {"attention_mask": kinds}


def _check_sees_sequences(batch: RankBatch) -> None:
    """Checks that the kind of model that packs were made for sees sequences by itself.

    Raises:
        ReaderError: it does not, or may have layers that carry a state; or the packs were made for no model.
    """
    if batch.model is None:
        why = f"pack {batch.pack_id} was packed for no model, and some would let its documents see each other"
    else:
        kind = batch.model.model_type
        language = language_model(FAMILIES[kind].text[0] if kind in FAMILIES else kind)
        if language.own_mask:
            why = f"{kind} makes its mask without position_ids, so documents of a pack would see each other"
        elif language.has_states:
            why = f"{kind} may have layers that carry a state from one document to the next"
        else:
            return
    raise ReaderError(
        f"{why}: call to_varlen(batch, model=model), which gives such a model what it needs or refuses it"
    )
