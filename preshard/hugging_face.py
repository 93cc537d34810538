"""Packs in the trainers of Hugging Face: ``transformers.Trainer``, TRL's ``SFTTrainer``, loops around accelerate."""

from preshard.trainer.integrations.hugging_face import OnPacks, take_packs

__all__ = ["OnPacks", "take_packs"]
