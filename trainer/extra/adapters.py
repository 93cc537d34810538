"""Export of a model with adapters of ``peft``: added to the weights that they are beside, or alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import nn

from preshard.trainer.core.export import whole_folder, write_folder
from preshard.trainer.extra.parts import Lora
from preshard.trainer.models.load import empty_model


def wrap(model: Any, stored: dict[str, Any]) -> nn.Module:
    """A model with the adapters that a checkpoint says it was trained with."""
    return Lora(**stored).wrap(model)


def write(model: Any, weights: dict[str, Any], source: Path, target: Path, *, lora: Lora, keep_adapters: bool) -> None:
    """Writes a model whose adapters are added to its weights, or the adapters alone.

    Args:
        model: of ``peft``.
        weights: its whole weights, or those of its adapters.
        source: the folder that it was loaded from.
        target: the new folder.
        lora: the adapters in it.
        keep_adapters: write these alone.

    Raises:
        ConfigError: it cannot be written; nothing of it is left.
    """
    if keep_adapters:
        write_adapters(model, weights, source, target)
        return
    wrapped: Any = lora.wrap(empty_model(source))
    wrapped.load_state_dict(weights, strict=False, assign=True)  # buffers that are not stored stay without values
    merged = wrapped.merge_and_unload()
    write_folder(merged, merged.state_dict(), source, target)


def write_adapters(model: Any, adapters: dict[str, Any], source: Path, target: Path) -> None:
    """Writes adapters alone. The folder appears under its name once it is whole.

    Args:
        model: of ``peft``; its own parameters are not looked at.
        adapters: their weights by their names in the model.
        source: the folder of the model that they are for, which they name.
        target: the new folder.

    Raises:
        ConfigError: it cannot be written; nothing of it is left.
    """
    for config in model.peft_config.values():
        config.base_model_name_or_path = str(source)
    with whole_folder(target) as unfinished:
        model.save_pretrained(unfinished, state_dict=adapters, save_embedding_layers=False)
