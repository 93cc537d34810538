"""Packs in Megatron Energon."""

from preshard.trainer.integrations.energon import PackSample, pack_cooker

__all__ = ["PackSample", "pack_cooker"]
