"""Quantised weights of a model folder: which of them are read, and what is refused before one is.

``transformers`` makes plain numbers of some forms. It casts the stored codes where it does not know that they are
codes, and keeps others in layers of their own, which do not train.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from preshard.schemas.errors import ConfigError
from preshard.trainer.extra.stored import Stored, stored_tensors

READ = ("fp8", "mxfp4")
"""Values of ``quant_method`` whose weights become plain numbers, as ``transformers`` makes them with ``dequantize``."""

KEYS = ("quantization_config", "compression_config")
"""Keys of ``config.json``, or of its ``text_config``, that describe quantised weights."""

_SCALES = ("_scale_inv", "scale", "qscale_weight")
"""Endings of names of scales: added to a weight's name, or in place of its last component."""

_REMEDY = "give the folder that was quantised, or one with weights in bfloat16"


def quantisation_of(folder: str | Path) -> dict[str, Any] | None:
    """Entry of ``config.json`` on quantised weights; None if they are not quantised.

    Raises:
        ConfigError: weights of that form are not read.
    """
    config = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    parts = [part for part in (config, config.get("text_config")) if isinstance(part, dict)]
    key, found = next(((key, part[key]) for part in parts for key in KEYS if part.get(key)), ("", None))
    if found is None:
        return None
    method = found.get("quant_method") if isinstance(found, dict) else None
    if key != KEYS[0] or method not in READ:
        form = f"quant_method {method!r}" if method else "no quant_method"
        raise ConfigError(
            f"--model {folder}: {key} of config.json has {form}, and of quantised weights only "
            f"{' and '.join(READ)} are read: {_REMEDY}"
        )
    return dict(found)


def as_plain_numbers(folder: str | Path) -> dict[str, Any]:
    """Arguments of ``from_pretrained`` that make plain numbers of quantised weights, also where a GPU could take them
    as they are; empty where they are not quantised.
    """
    form = quantisation_of(folder)
    if form is None:
        return {}
    from transformers.quantizers.auto import AutoQuantizationConfig

    return {"quantization_config": AutoQuantizationConfig.from_dict({**form, "dequantize": True})}


def without_quantisation(config: Any) -> Any:
    """Takes what is said of quantised weights out of a configuration of ``transformers``, in place: once read, they are
    plain numbers, and so they are exported.
    """
    for part in (config, config.get_text_config()):
        for key in KEYS:
            if hasattr(part, key):
                delattr(part, key)
    return config


def check_quantised(folder: str | Path) -> None:
    """Checks by the headers of its files that a folder's weights are plain numbers or become them exactly.

    Raises:
        ConfigError: they are of a form that is not read, are codes without scales, or have blocks that do not divide
            them, for which ``transformers`` takes others.
    """
    form, tensors = quantisation_of(folder), {each.name: each for each in stored_tensors(Path(folder))}
    if form is not None and form["quant_method"] != "fp8":
        return
    for each in tensors.values():
        if not each.is_code or each.name.endswith(_SCALES):
            continue
        if form is None:
            raise ConfigError(
                f"--model {folder}: {each.name} is stored as {each.dtype}, and config.json has no quantization_config "
                f"that says what its numbers mean: {_REMEDY}"
            )
        names = (f"{each.name}{_SCALES[0]}", *(f"{each.name.rpartition('.')[0]}.{end}" for end in _SCALES[1:]))
        scales = next((tensors[name] for name in names if name in tensors), None)
        if scales is None:
            raise ConfigError(
                f"--model {folder}: {each.name} is stored as {each.dtype} and has no {names[0]} beside it: give a "
                "complete folder"
            )
        _check_blocks(folder, each, scales, form)


def _check_blocks(folder: str | Path, weight: Stored, scales: Stored, form: Mapping[str, Any]) -> None:
    blocks = form.get("weight_block_size") or ()
    for size, parts, block in zip(weight.shape[-2:], scales.shape[-2:], blocks, strict=False):
        if parts > 1 and size != parts * block:
            raise ConfigError(
                f"--model {folder}: {weight.name} is {list(weight.shape)} and its scales are {list(scales.shape)}, so "
                f"its last block of {block} is not full, and transformers would read it by other blocks: {_REMEDY}"
            )
