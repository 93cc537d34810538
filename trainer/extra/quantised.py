"""Quantised weights of a model folder: which of them are read, and what is refused before one is.

``transformers`` makes plain numbers of some forms. It casts the stored codes where it does not know that they are
codes, and keeps others in layers of their own, which do not train.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from preshard.schemas.errors import ConfigError

READ = ("fp8", "mxfp4")
"""Values of ``quant_method`` whose weights become plain numbers, as ``transformers`` makes them with ``dequantize``."""

KEYS = ("quantization_config", "compression_config")
"""Keys of ``config.json``, or of its ``text_config``, that describe quantised weights."""

_SCALES = ("_scale_inv", "scale", "qscale_weight")
"""Endings of names of scales: added to a weight's name, or in place of its last component."""

_REMEDY = "give the folder that was quantised, or one with weights in bfloat16"


class Stored(NamedTuple):
    """A tensor of a folder's weights by its file's header; ``dtype`` in the words of safetensors."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def is_code(self) -> bool:
        """Whether its numbers mean something only together with scales."""
        kind = self.dtype.partition("_")[0]
        return kind in ("F8", "F6", "F4") or (kind in ("I8", "U8") and self.name.endswith("weight"))


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


def stored_tensors(folder: Path) -> Iterator[Stored]:
    """The tensors of the files of weights that ``transformers`` reads, by the files' headers."""
    for path in weight_files(folder):
        yield from (_of_pickle if path.suffix == ".bin" else _of_safetensors)(path)


def weight_files(folder: Path) -> list[Path]:
    """The files of a folder that ``transformers`` reads weights from."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return [folder / name]
        if index.is_file():
            return sorted(
                {folder / each for each in json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()}
            )
    return []


def _of_safetensors(path: Path) -> Iterator[Stored]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    for name, entry in header.items():
        if name != "__metadata__":
            yield Stored(name, entry["dtype"], tuple(entry["shape"]))


def _of_pickle(path: Path) -> Iterator[Stored]:
    import torch

    for name, each in torch.load(path, map_location="meta", weights_only=True).items():
        kind = "F" if each.is_floating_point() else "U" if each.dtype == torch.uint8 else "I"
        yield Stored(name, f"{kind}{8 * each.itemsize}", tuple(each.shape))
