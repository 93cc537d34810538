"""Layers of a model folder that predict further tokens, which ``transformers`` neither loads nor trains."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from preshard.trainer.extra.quantised import quantisation_of
from preshard.trainer.extra.stored import stored_tensors, weight_files

_COUNTS = ("mtp_num_hidden_layers", "num_nextn_predict_layers", "num_mtp_layers", "mtp_num_layers")
"""Keys of ``config.json`` that count them."""


def further_layers(model: Any, source: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors of such layers, as they are stored, to be saved beside the model's own.

    Those of a quantised source are left out, as no plain numbers are made of them; the model's configuration then
    counts none.

    Args:
        model: of ``transformers``.
        source: the folder that it was loaded from.

    Returns:
        The tensors by name, and what is left out, in words; one of the two is empty.
    """
    from safetensors import safe_open

    text, found = model.config.get_text_config(), dict[str, Tensor]()
    names = {each.name for each in stored_tensors(source) if _predicts_further(each.name, text.num_hidden_layers)}
    if names and quantisation_of(source) is not None:
        for key in _COUNTS:
            if getattr(text, key, None):
                setattr(text, key, 0)
        return {}, f"layers for multi-token prediction: those of {source} are quantised"
    for path in weight_files(source) if names else ():
        if path.suffix == ".bin":
            stored = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
            found |= {name: stored[name].clone() for name in stored.keys() & names}
        else:
            with safe_open(path, "pt") as file:
                found |= {name: file.get_tensor(name) for name in names.intersection(file.keys())}
    return found, ""


def _predicts_further(name: str, layers: int) -> bool:
    """Whether a tensor is of such a layer: by its name, or as a layer behind the model's last one."""
    numbered = re.match(r"(?:model\.|language_model\.)*layers\.(\d+)\.", name)
    return any(part.startswith("mtp") for part in name.split(".")) or bool(numbered and int(numbered[1]) >= layers)
