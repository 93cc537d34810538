"""Loads a Hugging Face model from its folder, with the attention of packs in place of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from trainer.models.families import family_of
from trainer.models.folder import check_weights, read_model_config
from trainer.models.interface import PACKED, register_attention


def load_model(
    folder: str | Path, *, dtype: torch.dtype = torch.float32, from_scratch: bool = False, seed: int = 0
) -> nn.Module:
    """The model of a folder as ``transformers`` builds it, on the CPU and in training mode.

    Nothing of it is patched. Its language model asks the registered attention of packs instead of its own, and its
    vision encoder keeps ``sdpa``.

    Args:
        folder: as ``save_pretrained`` or a snapshot leaves it. Nothing is downloaded.
        dtype: of the parameters. What the model computes in float32 whatever its dtype, such as rotary frequencies,
            stays in float32.
        from_scratch: random weights of that configuration. They follow from ``seed`` alone: they are drawn in float32
            and converted.
        seed: of random weights.

    Raises:
        ConfigError: transformers is not installed, the folder holds no model or no weights, the model is of no
            supported kind, or it does something to its attention or its logits that packs cannot follow.
    """
    transformers = register_attention()
    config = read_model_config(folder)
    family = family_of(config)
    implementation: Any = PACKED
    if family is not None:
        implementation = dict.fromkeys(("", *config.sub_configs), "sdpa") | {"text_config": PACKED}
    auto = transformers.AutoModelForCausalLM if family is None else transformers.AutoModelForImageTextToText
    if from_scratch:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = auto.from_config(config, dtype=torch.float32, attn_implementation=implementation)
        _convert(model, dtype)
    else:
        check_weights(folder)
        model = auto.from_pretrained(folder, dtype=dtype, attn_implementation=implementation, local_files_only=True)
    trained: nn.Module = model.train()
    return trained


def _convert(model: nn.Module, dtype: torch.dtype) -> None:
    """Converts parameters alone: a model's rotary frequencies are buffers, and too coarse in bfloat16."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
