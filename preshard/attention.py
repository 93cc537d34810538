"""Exact attention under the mask of a pack, over the ranks of a context-parallel group; the mesh of these ranks, and
values of tokens between their slices and natural order."""

from preshard.trainer.attention.bind import KINDS, Attend, bind, check_heads
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.heads import gather_heads, scatter_heads
from preshard.trainer.attention.kernels import Kernel
from preshard.trainer.attention.listed import TileLister
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.reference import reference_attention
from preshard.trainer.attention.tokens import gather_tokens, slice_tokens
from preshard.trainer.core.mesh import build_mesh

__all__ = [
    "KINDS",
    "Attend",
    "ContextParallel",
    "Kernel",
    "MaskTensors",
    "TileLister",
    "bind",
    "build_mesh",
    "check_heads",
    "gather_heads",
    "gather_tokens",
    "reference_attention",
    "scatter_heads",
    "slice_tokens",
]
