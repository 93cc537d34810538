"""A packed dataset as one context-parallel rank reads it."""

from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset

__all__ = ["PackedDataset", "RankBatch"]
