"""Exact attention under the mask of a pack, over the ranks of a context-parallel group."""

from preshard.trainer.attention import KINDS, Attend, MaskTensors, bind, check_heads, reference_attention
from preshard.trainer.attention.heads import gather_heads, scatter_heads
from preshard.trainer.distributed.mesh import ContextParallel

__all__ = [
    "KINDS",
    "Attend",
    "ContextParallel",
    "MaskTensors",
    "bind",
    "check_heads",
    "gather_heads",
    "reference_attention",
    "scatter_heads",
]
