"""Packed datasets as one context-parallel rank reads them: its slice of the tokens, and its crops."""

from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.loader import PackStream, make_loader
from preshard.trainer.integrations.varlen import to_bridge, to_megatron, to_varlen

__all__ = ["PackStream", "PackedDataset", "RankBatch", "make_loader", "to_bridge", "to_megatron", "to_varlen"]
