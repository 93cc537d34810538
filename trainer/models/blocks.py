"""The repeated parts of a Hugging Face model."""

from __future__ import annotations

from torch import nn


def block_paths(model: nn.Module) -> tuple[str, ...]:
    """Paths of a model's blocks: the outermost modules that it says are not to be split among devices.

    Ask before the model is sharded, which gives classes other names.
    """
    names = frozenset(getattr(model, "_no_split_modules", None) or ())
    found: list[str] = []
    for path, module in model.named_modules():
        if type(module).__name__ in names and not any(path.startswith(f"{outer}.") for outer in found):
            found.append(path)
    return tuple(found)
