# ruff: noqa: N803 (shape suffixes)
"""Heads are dealt along one axis and keys go round the other."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from trainer.attention.ring import RingPlan, ring_attention


def hybrid_attention(
    q_HLD: Float[Tensor, "H L D"], k_KLD: Float[Tensor, "K L D"], v_KLD: Float[Tensor, "K L D"], plan: RingPlan
) -> Float[Tensor, "H L D"]:
    """Ulysses inside a ring (Fang and Zhao 2024, USP): what ``ring_attention`` does on a mesh of both axes.

    The axis ulysses must divide the heads, the ring need not; a ring of R ranks sends the same bytes whatever U is,
    since each of the U ranks at one place of it sends its own heads.
    """
    return ring_attention(q_HLD, k_KLD, v_KLD, plan)
