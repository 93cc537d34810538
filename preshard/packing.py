"""Packs of documents in memory, for what cannot be packed before training: rollouts, a stream that is filtered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from preshard.packer_service.config import load_config
from preshard.packer_service.job.online import pack_held
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError
from preshard.trainer.data.held import HeldFiles, PackedBatch

__all__ = ["PackedBatch", "pack_batch"]


def pack_batch(
    documents: Iterable[Mapping[str, Any]], config: PackConfig | Mapping[str, Any], *, multiple_of: int = 1
) -> PackedBatch:
    """Packs documents in memory into the packs of one step, as :func:`preshard.pack` packs a source of these rows.

    Args:
        documents: rows in any form that a source may have, such as ``{"messages": ...}`` or ``{"input_ids": ...}``. A
            picture may be one of PIL or a tensor ``uint8(3, height, width)``, a video a list of pictures or a tensor
            ``uint8(frames, 3, height, width)`` with ``fps`` beside it, and a list of numbers a tensor. Paths are
            relative to the working directory.
        config: that of a dataset (``PackedDataset(...).config``), or keys and values as :func:`preshard.pack` takes
            them.
        multiple_of: the number of data-parallel ranks; packs of padding alone are added to make a multiple of it.

    Returns:
        The packs, and the documents that are in none of them.

    Raises:
        ConfigError: a key or value cannot be used, or the documents are no rows of any form.
    """
    if isinstance(documents, Mapping | str):
        kind = type(documents).__name__
        raise ConfigError(f"documents is a {kind}; give a list of rows: [{{'messages': [...]}}, ...]")
    resolved = config if isinstance(config, PackConfig) else load_config(over=config)
    held = pack_held(list(documents), resolved, multiple_of)
    settings = held.config.model_dump(mode="json")
    return PackedBatch(HeldFiles(held.samples, held.places, settings, held.target.model), held.rejects)
