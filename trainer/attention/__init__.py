"""Exact attention under the mask of a pack, over the ranks of a context-parallel group."""

from preshard.trainer.attention.bind import KINDS, Attend, bind, check_heads
from preshard.trainer.attention.gather import gather_attention, ulysses_attention
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.reference import reference_attention
from preshard.trainer.attention.ring import ring_attention

__all__ = [
    "KINDS",
    "Attend",
    "MaskTensors",
    "bind",
    "check_heads",
    "gather_attention",
    "reference_attention",
    "ring_attention",
    "ulysses_attention",
]
