"""Hugging Face models on packs."""

from preshard.trainer.models import PackedModel, load_model
from preshard.trainer.models.features import bind_features

__all__ = ["PackedModel", "bind_features", "load_model"]
