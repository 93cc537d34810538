"""Hugging Face models on packs."""

from trainer.models.load import load_model
from trainer.models.packed import PackedModel

__all__ = ["PackedModel", "load_model"]
