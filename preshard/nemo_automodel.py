"""Packs in the finetune recipe of NeMo AutoModel."""

from preshard.trainer.integrations.nemo import PackDataset, collate_packs, load_for_packs

__all__ = ["PackDataset", "collate_packs", "load_for_packs"]
