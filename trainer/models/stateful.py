"""Layers of a model that are no attention and carry a state from token to token, by their kind in ``layer_types``."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import torch

from preshard.schemas.layout import TokenLayout
from preshard.schemas.sequence import MaskArrays
from preshard.trainer.attention.context_parallel import ContextParallel

KINDS = {"linear_attention": "gated_delta"}
"""The module of this folder that makes a kind of layer follow packs, imported for a model that has such layers."""


def load_states(config: Any) -> Any:
    """The module for a model's layers that carry a state; None for a model without."""
    kinds = getattr(config.get_text_config(), "layer_types", None) or ()
    module = next((module for kind, module in KINDS.items() if kind in kinds), None)
    return None if module is None else import_module(f"{__package__}.{module}")


def bind_states(
    config: Any, layout: TokenLayout, mask: MaskArrays, cp: ContextParallel, device: torch.device
) -> dict[str, Any]:
    """Facts about a pack that these layers need, as an argument of the model's call; empty for a model without.

    Raises:
        ConfigError: their heads do not divide among the ranks.
    """
    states = load_states(config)
    return {} if states is None else states.bind_states(config, layout, mask, cp, device)
