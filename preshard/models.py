"""Hugging Face models on packs: loaded, sharded, called with one rank's part, and trained in less memory."""

from preshard.trainer.core.sharding import shard_model
from preshard.trainer.extra.compiled import compile_blocks
from preshard.trainer.extra.saving import save_memory
from preshard.trainer.models.features import bind_features
from preshard.trainer.models.load import load_model, load_sharded
from preshard.trainer.models.packed import PackedModel

__all__ = [
    "PackedModel",
    "bind_features",
    "compile_blocks",
    "load_model",
    "load_sharded",
    "save_memory",
    "shard_model",
]
