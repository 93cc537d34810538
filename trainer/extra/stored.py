"""Files of a model folder: whether it is one, which of them hold weights, and what is in those by their headers."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from preshard.schemas.errors import ConfigError
from preshard.schemas.files.printed import several
from preshard.trainer.models.load import WEIGHTS, one_line

ADAPTER = "adapter_config.json"
"""File by which ``peft`` knows a folder with adapters, and ``transformers`` loads these beside a model."""

NAMES = ("model.safetensors", "pytorch_model.bin")
"""Files in which ``transformers`` looks for weights, in this order; each may be an index of several instead."""

POINTER = b"version https://git-lfs"
"""First bytes of what Git leaves in place of a large file that was not fetched."""

_AGAIN = "get it anew, such as by hf download"

_HEAD = re.compile(r"(.*\.)?(lm_head|output_projection)\.weight")
_EMBEDDING = re.compile(r"(.*\.)?(embed_tokens|wte|embed_in)\.weight")

_ROWS = 4096
"""Rows of two tensors that are compared at a time."""


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


def check_folder(folder: Path) -> None:
    """Checks that there is a model folder, with no adapters in it.

    Raises:
        ConfigError: there is none; says which is near, or how to get it. Or ``transformers`` would load adapters, too.
    """
    if (folder / ADAPTER).is_file():
        raise ConfigError(
            f"--model is {folder}, which holds adapters of {_base_of(folder)}: give that model, or a folder in which "
            f"they are merged (merge_and_unload of peft); without {ADAPTER} a folder is the model alone"
        )
    if (folder / "config.json").is_file():
        return
    if not folder.exists() and re.fullmatch(r"\w[\w.-]*/[\w.-]+", str(folder)):
        remedy = f"get it with hf download {folder} --local-dir {folder.name}, and give --model {folder.name}"
    elif folder.is_file():
        remedy = f"it is a file: give --model {folder.parent}"
    elif near := sorted([*folder.glob("*/config.json"), *folder.glob("*/*/config.json")]):
        remedy = f"give one below it that does, such as --model {near[-1].parent}"
    else:
        remedy = "give the path of a model folder"
    raise ConfigError(f"--model is {folder}, which has no config.json; {remedy}")


def _base_of(folder: Path) -> str:
    try:
        return str(json.loads((folder / ADAPTER).read_text(encoding="utf-8"))["base_model_name_or_path"])
    except (OSError, ValueError, KeyError, TypeError):
        return "another model"


def follow_ties(config: Any, folder: Path) -> None:
    """Unties, in a configuration, embedding and output projection of which the folder holds two different ones, as
    ``transformers`` does. Trainers that resize or save embeddings leave ``tie_word_embeddings`` behind.
    """
    parts = [config, config.get_text_config()]
    if any(getattr(part, "tie_word_embeddings", False) for part in parts) and _holds_two(folder):
        for part in parts:
            part.tie_word_embeddings = False


def _holds_two(folder: Path) -> bool:
    """Whether a folder holds an embedding and an output projection that differ."""
    try:
        found = [(each.name, path) for path in weight_files(folder) for each in tensors_of(path)]
    except ConfigError:  # said where weights are asked for
        return False
    ends = [[(name, path) for name, path in found if kind.fullmatch(name)] for kind in (_HEAD, _EMBEDDING)]
    if any(len(end) != 1 for end in ends):
        return False
    (head, of_head), (embedding, of_embedding) = (end[0] for end in ends)
    if of_head.suffix == ".bin":
        return not _equal(_loaded(of_head, head), _loaded(of_embedding, embedding))
    from safetensors import safe_open

    with safe_open(of_head, "pt") as one, safe_open(of_embedding, "pt") as other:
        return not _equal(one.get_slice(head), other.get_slice(embedding))


def _loaded(path: Path, name: str) -> Any:
    import torch

    return torch.load(path, map_location="cpu", weights_only=True, mmap=True)[name]


def _equal(one: Any, other: Any) -> bool:
    """Whether two tensors, or what gives slices of them, hold the same numbers."""
    shapes = [tuple(each.shape if hasattr(each, "shape") else each.get_shape()) for each in (one, other)]
    return shapes[0] == shapes[1] and all(
        one[start : start + _ROWS].double().equal(other[start : start + _ROWS].double())
        for start in range(0, shapes[0][0], _ROWS)
    )


def stored_tensors(folder: Path) -> Iterator[Stored]:
    """The tensors of the files of weights that ``transformers`` reads, by the files' headers.

    Raises:
        ConfigError: a file is missing or damaged.
    """
    for path in weight_files(folder):
        yield from tensors_of(path)


def weight_files(folder: Path) -> list[Path]:
    """The files of a folder that ``transformers`` reads weights from; none if it holds no weights.

    Raises:
        ConfigError: it holds others alone, or an index names files that are not there.
    """
    for name in NAMES:
        index = folder / f"{name}.index.json"
        if (folder / name).is_file():
            return [folder / name]
        if index.is_file():
            files = sorted({folder / each for each in _names_of(index).values()})
            if missing := [path.name for path in files if not path.is_file()]:
                more = f" and {several(len(missing) - 1, 'more file')}" * (len(missing) > 1)
                raise ConfigError(f"--model {folder} lacks {missing[0]}{more}, by its {index.name}: {_AGAIN}")
            return files
    if others := sorted(path.name for pattern in WEIGHTS for path in folder.glob(pattern)):
        raise ConfigError(
            f"--model {folder} holds {others[0]} and neither {NAMES[0]} nor {NAMES[0]}.index.json, by which weights "
            f"are found: {_AGAIN}, or name a single file {NAMES[0]}"
        )
    return []


def _names_of(index: Path) -> Mapping[str, str]:
    try:
        found: Mapping[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        return found
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _damaged(index, error) from None


def tensors_of(path: Path) -> list[Stored]:
    """The tensors of a file by its header.

    Raises:
        ConfigError: it is damaged, or was not fetched.
    """
    try:
        return list((_of_pickle if path.suffix == ".bin" else _of_safetensors)(path))
    except Exception as error:  # of a pickle that is damaged, any
        raise _damaged(path, error) from None


def _damaged(path: Path, error: Exception) -> ConfigError:
    with path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            return ConfigError(
                f"--model {path.parent}: {path.name} is what Git LFS leaves in place of a file that was not fetched: "
                f"git -C {path.parent} lfs pull"
            )
    return ConfigError(f"--model {path.parent}: {path.name} is cut short or damaged ({one_line(error)}): {_AGAIN}")


def _of_safetensors(path: Path) -> Iterator[Stored]:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size < 8:
            raise ValueError(f"{several(size, 'byte')}")
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(min(length, size)))
    header.pop("__metadata__", None)
    whole = 8 + length + max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size < whole:
        raise ValueError(f"{size:,} of {several(whole, 'byte')}")
    for name, entry in header.items():
        yield Stored(name, entry["dtype"], tuple(entry["shape"]))


def _of_pickle(path: Path) -> Iterator[Stored]:
    import torch

    for name, each in torch.load(path, map_location="meta", weights_only=True).items():
        kind = "F" if each.is_floating_point() else "U" if each.dtype == torch.uint8 else "I"
        yield Stored(name, f"{kind}{8 * each.itemsize}", tuple(each.shape))
