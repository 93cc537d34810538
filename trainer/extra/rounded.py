"""Weights of an exported model in another dtype than that of training."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch


def rounded(weights: dict[str, Any], dtype: str | None, model: Any = None) -> dict[str, Any]:
    """Weights by their names in a dtype, if one is given.

    What ``transformers`` keeps in float32 beside parameters in bfloat16 keeps its dtype, such as what routers add to
    scores.

    Args:
        weights: by their names in the model.
        dtype: by its name.
        model: of ``transformers``; without it nothing is kept.
    """
    if dtype is None:
        return weights
    kept = [re.compile(rf"(^|\.){part}(\.|$)") for part in getattr(model, "_keep_in_fp32_modules_strict", None) or ()]
    return {
        name: each
        if not each.is_floating_point() or any(part.search(name) for part in kept)
        else each.to(getattr(torch, dtype))
        for name, each in weights.items()
    }


def declare(folder: Path, dtype: str | None) -> None:
    """Writes a dtype, if one is given, into ``config.json`` where one is named: for the model, and for its parts."""
    if dtype is None:
        return
    file = folder / "config.json"
    config = json.loads(file.read_text(encoding="utf-8"))
    for part in (config, *(each for each in config.values() if isinstance(each, dict))):
        if "dtype" in part:
            part["dtype"] = dtype
    file.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
