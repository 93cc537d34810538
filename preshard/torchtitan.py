"""Packs in torchtitan's trainer."""

from preshard.trainer.integrations.torchtitan import PackTrainer, on_packs
from preshard.trainer.integrations.torchtitan_data import PackLoader, PackValidator, context_parallel

__all__ = ["PackLoader", "PackTrainer", "PackValidator", "context_parallel", "on_packs"]
