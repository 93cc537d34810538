"""Exact attention under the mask of a pack, over the ranks of a context-parallel group."""

from preshard.trainer.attention.bind import KINDS, bind, check_heads
from preshard.trainer.attention.kind import Attend
from preshard.trainer.attention.mask import MaskTensors

__all__ = ["KINDS", "Attend", "MaskTensors", "bind", "check_heads"]
