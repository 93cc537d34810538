"""Latent attention of ``transformers`` that leaves latents as they are, for attention to expand where they arrive.

A module of such attention has ``expand_kv``, which makes keys and values of all heads from a token's latent and from
the turned part of keys that the heads share. Here that gives back what it was given, and attention gets the matrix of
the projection inside, ``kv_b_proj``: its results for the unit vectors. So whatever is around the projection, such as
autocast, FSDP2 or an adapter, has its part in them, and gradients go the same way back.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from preshard.trainer.models.interface import PACKED


def leave_latents(model: Any) -> None:
    """Makes each module of latent attention leave its latents unexpanded. Parameters keep their names."""
    for module in model.modules():
        if hasattr(module, "expand_kv"):
            module.expand_kv = partial(_expand, module)
            module.latents_up = partial(_up, module)


def _expand(module: Any, latents: Tensor, shared: Tensor) -> tuple[Tensor, Tensor]:
    """Latents and shared parts as they are, or keys and values."""
    if _is_matrix(module):
        return latents, shared
    keys, values = type(module).expand_kv(module, latents, shared)
    return keys, values


def _up(module: Any, latents: Float[Tensor, "1 1 L C"]) -> Float[Tensor, "C K X"] | None:
    """The matrix by which :func:`preshard.attention.bind`'s functions expand; None if keys are there already."""
    if not _is_matrix(module):
        return None
    units = torch.eye(latents.shape[-1], dtype=latents.dtype, device=latents.device)
    made: Tensor = module.kv_b_proj(units)
    return made.unflatten(-1, (-1, module.qk_nope_head_dim + module.v_head_dim))


def _is_matrix(module: Any) -> bool:
    """Whether a module's projection is one matrix for all tokens: it adds no bias, and no adapter draws noise for each,
    nor is one of a kind other than ``LORA``.
    """
    if module.config._attn_implementation != PACKED:
        return False
    projection: nn.Module = module.kv_b_proj
    adapted = hasattr(projection, "base_layer")
    plain: Any = projection.base_layer if adapted else projection
    if not isinstance(plain, nn.Linear) or (adapted and not hasattr(projection, "lora_A")):
        return False
    biased = any(name.endswith("bias") for name, _ in projection.named_parameters())
    noisy = any(isinstance(part, nn.Dropout) and part.p and part.training for part in projection.modules())
    return not (biased or noisy)
