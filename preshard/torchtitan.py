"""Packs in torchtitan's trainer."""

from preshard.trainer.integrations.torchtitan import PackLoader, PackTrainer, context_parallel, on_packs

__all__ = ["PackLoader", "PackTrainer", "context_parallel", "on_packs"]
