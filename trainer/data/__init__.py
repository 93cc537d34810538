"""A packed dataset as one context-parallel rank reads it."""

from trainer.data.batch import RankBatch
from trainer.data.dataset import PackedDataset

__all__ = ["PackedDataset", "RankBatch"]
