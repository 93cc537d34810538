"""Checks of a model folder before a weight is read: whether packs follow its model, and a dataset is for it."""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zipfile
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import ManifestHead, ModelEntry, encoder_of
from preshard.schemas.model.families import FAMILIES
from preshard.schemas.model.followed import check_followed, check_positions, check_window, hidden_window_of
from preshard.schemas.model.languages import language_model
from preshard.trainer.extras import load_extra
from preshard.trainer.families.family import has_transformers
from preshard.trainer.models.interface import family_of
from preshard.trainer.models.load import WEIGHTS, model_sizes, one_line

_SAMPLED = 1024
"""Bytes of a tensor that tell it from that of another model: training changes nearly all of them."""


def check_stored(stored: Mapping[str, Any]) -> None:
    """Checks that packs follow a model, by what lies in its folder.

    Raises:
        ConfigError: they do not (:func:`preshard.schemas.model.followed.check_followed`), or the installed
            ``transformers`` is too old for it.
    """
    check_followed({"model_type": "", **stored}, "--model")
    check_version(stored["model_type"])


def check_config(config: Any) -> None:
    """The same with what the configuration's class has for keys that are left out."""
    check_followed(config.to_dict(), "--model")


def check_experts_whole(config: Any) -> None:
    """Checks that a model's experts are not dealt to ranks.

    Raises:
        ConfigError: they are.
    """
    degree = getattr(getattr(config, "distributed_config", None), "ep_size", None) or 1
    if degree > 1:
        raise ConfigError(
            f"ep_size of distributed_config is {degree}, and ranks that share a pack take all experts: load the model "
            "without; Megatron-Core and torchtitan have expert parallelism beside context parallelism"
        )


def check_dataset(config: Any, manifest: ManifestHead, seq_len: int) -> None:
    """Checks that a dataset's packs are for a model.

    Raises:
        ConfigError: they were packed for another kind of model, hold images of the generic way, ids that the model has
            no embedding for, or are longer than a window that its layers do not say.
    """
    check_packed_for(config, manifest.model, has_images=manifest.counts.images > 0)
    sizes = model_sizes(config)
    if sizes.vocab_size < manifest.tokenizer.vocab_size:
        raise ConfigError(
            f"--model has an embedding of {sizes.vocab_size} rows; the dataset's tokenizer {manifest.tokenizer.name} "
            f"has ids below {manifest.tokenizer.vocab_size}: pack with --model DIR of this model"
        )
    check_window(hidden_window_of(config.to_dict()), seq_len, "--model")
    check_positions(config.to_dict(), seq_len, "--model")


def check_packed_for(config: Any, packed_for: ModelEntry | None, *, has_images: bool) -> None:
    """Checks that packs are for a kind of model, and their images for the size of its patches and rows.

    Raises:
        ConfigError: they are for another kind or size, or hold images of the generic way.
    """
    kind = config.model_type
    if packed_for is not None and packed_for.model_type != kind:
        raise ConfigError(
            f"the dataset was packed for a {packed_for.model_type} model and the model is {kind}: pack with "
            "--model DIR of this model"
        )
    if packed_for is None and (family_of(config) is not None or has_images):
        raise ConfigError(
            f"the dataset was packed for no model, so its images are not those of {kind}: pack with --model DIR"
        )
    if packed_for is not None and has_images:
        of_dataset, of_model = _sizes_of_dataset(packed_for), _sizes_of_model(config)
        for what, size in of_model.items():
            if of_dataset.get(what, size) != size:
                packed, own = (what.format(found) for found in (of_dataset[what], size))
                raise ConfigError(
                    f"the dataset was packed for {packed} and the model has {own}: pack with --model DIR of this model"
                )


PATCH, TIME, ROW = "patches of {} pixels", "patches of {} frames", "rows of {} patches along a side"
"""Sizes by which pictures become rows."""


def _sizes_of_dataset(packed_for: ModelEntry) -> dict[str, str]:
    encoder, settings = encoder_of(packed_for.settings), packed_for.settings
    if encoder is None:
        return {}
    row: Any = packed_for.merge if packed_for.has_grids else settings.get("pooling")
    if packed_for.shares_crops:
        row = math.isqrt(encoder.row_inputs // encoder.hidden_size)
    return {PATCH: _sides(encoder.patch_size), TIME: str(encoder.temporal_patch_size), ROW: str(row)}


def _sizes_of_model(config: Any) -> dict[str, str]:
    """Sizes of a model, read where its family's classes keep them; Molmo2 makes rows as the packs say."""
    vision = getattr(config, "vision_config", None)
    if vision is None:
        return {}
    sizes = {PATCH: _sides(vision.patch_size), TIME: str(getattr(vision, "temporal_patch_size", 1))}
    row = getattr(vision, "spatial_merge_size", getattr(config, "spatial_merge_size", None))
    row = getattr(vision, "pooling_kernel_size", row)
    if hasattr(vision, "merge_kernel_size"):
        row = vision.merge_kernel_size[0]
    if hasattr(config, "mm_tokens_per_image"):
        row = vision.image_size // vision.patch_size // math.isqrt(config.mm_tokens_per_image)
    if hasattr(config, "downsample_ratio"):
        row = round(1 / config.downsample_ratio)
    return sizes if row is None else {**sizes, ROW: str(row)}


def _sides(size: Any) -> str:
    height, width = (size, size) if isinstance(size, int) else size
    return f"{height} x {width}"


def check_weights(folder: str | Path) -> None:
    """Checks that a model folder holds weights, of a form that is read.

    Raises:
        ConfigError: it holds none, or not all, or such as are damaged, or quantised ones that do not become plain
            numbers exactly.
    """
    if not any(next(Path(folder).glob(pattern), None) for pattern in WEIGHTS):
        raise ConfigError(
            f"--model {folder} holds no weights ({' or '.join(WEIGHTS)}); give a folder with weights, or --from-scratch"
        )
    load_extra("quantised").check_quantised(folder)


def weights_hash(folder: Path) -> str:
    """A hash of a part of every tensor, one read for each: its name, type, shape and some bytes in the middle.

    It does not depend on how tensors are dealt to files. Of files that PyTorch pickled it is one of their checksums.
    """
    files = sorted(folder.glob(WEIGHTS[0])) or sorted(folder.glob(WEIGHTS[1]))
    try:
        facts = [fact for path in files for fact in (_records if path.suffix == ".bin" else _tensors)(path)]
    except (OSError, ValueError, KeyError, struct.error, zipfile.BadZipFile) as error:
        raise ConfigError(f"--model {folder}: its weights cannot be read ({one_line(error)})") from None
    return hashlib.sha256(json.dumps(sorted(facts)).encode()).hexdigest()[:16]


def _tensors(path: Path) -> Iterator[list[Any]]:
    """The format of safetensors: the length of a JSON header, the header, and the bytes that it names."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        for name, entry in header.items():
            if name != "__metadata__":
                start, end = entry["data_offsets"]
                file.seek(8 + length + start + max(0, (end - start) // 2 - _SAMPLED // 2))
                yield [name, entry["dtype"], entry["shape"], file.read(min(_SAMPLED, end - start)).hex()]


def _records(path: Path) -> Iterator[list[Any]]:
    with zipfile.ZipFile(path) as file:
        yield from ([path.name, entry.filename, entry.CRC] for entry in file.infolist())


def check_version(model_type: str | None) -> None:
    """Checks that the installed ``transformers`` is new enough for a kind of model.

    Raises:
        ConfigError: it is not.
    """
    kind = model_type or ""
    since = (FAMILIES.get(kind) or language_model(kind)).since
    if has_transformers(since):
        return
    first = ".".join(map(str, since))
    raise ConfigError(
        f"--model is a {model_type} model, which needs transformers {first} or newer; {version('transformers')} is "
        f"installed: pip install 'transformers>={first}'"
    )
