"""Hugging Face models on packs."""

from preshard.trainer.models.load import load_model
from preshard.trainer.models.packed import PackedModel

__all__ = ["PackedModel", "load_model"]
