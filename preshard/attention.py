"""Exact attention under the mask of a pack, over the ranks of a context-parallel group, and the mesh of these ranks."""

from preshard.trainer.attention import KINDS, Attend, MaskTensors, bind, check_heads, reference_attention
from preshard.trainer.attention.heads import gather_heads, scatter_heads
from preshard.trainer.attention.kernels import Kernel
from preshard.trainer.attention.listed import TileLister
from preshard.trainer.distributed.mesh import ContextParallel, build_mesh

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
    "reference_attention",
    "scatter_heads",
]
