"""Facts that a model folder states before a weight is read, and whether a run can train its model on a dataset."""

from __future__ import annotations

import hashlib
import json
import math
import struct
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import ManifestHead, ModelEntry
from preshard.schemas.model.encoder import encoder_of
from preshard.schemas.model.families import FAMILIES
from preshard.schemas.model.followed import check_followed, check_positions, check_window, hidden_window_of
from preshard.schemas.model.languages import language_model, window_of
from preshard.trainer.attention.mask import Groups
from preshard.trainer.extras import load_extra
from preshard.trainer.families.family import family_of, has_transformers
from preshard.trainer.models.interface import register_attention

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
"""Files of a model folder that hold weights."""

_SAMPLED = 1024
"""Bytes of a tensor that tell it from that of another model: training changes nearly all of them."""

NOT_THE_MODEL = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache")
"""Keys of ``config.json`` that may change while the model stays the same."""


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """Sizes of a model's language part.

    Attributes:
        layer_heads: query heads of each layer.
        num_kv_heads: key and value heads, of the layer with the fewest.
        head_dims: width of a head in each layer.
        vocab_size: rows of the embedding.
        windows: tokens that each layer sees, None for a layer without a sliding window; empty if no layer has one.
        groups: in which layers bidirectional groups hold.
        softcap: what the logits are capped at, None if they are not.
        score_cap: the same of the scores of attention.
    """

    layer_heads: tuple[int, ...]
    num_kv_heads: int
    head_dims: tuple[int, ...]
    vocab_size: int
    windows: tuple[int | None, ...]
    groups: Groups
    softcap: float | None
    score_cap: float | None

    @property
    def num_heads(self) -> int:
        """The largest number of query heads that those of each layer are a multiple of: ranks may share so many."""
        return math.gcd(*self.layer_heads)


def read_model_config(folder: str | Path) -> Any:
    """The configuration of a folder's model, as ``transformers`` reads it. Nothing is downloaded.

    Raises:
        ConfigError: transformers is not installed, the folder holds no model, or one that packs do not follow
            (:func:`preshard.schemas.model.followed.check_followed`).
    """
    transformers = register_attention()
    folder = Path(folder)
    if not (folder / "config.json").is_file():
        raise ConfigError(f"--model is {folder}, which has no config.json; give the path of a model folder")
    try:
        stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        check_followed({"model_type": "", **stored}, "--model")
        check_version(stored["model_type"])
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except ConfigError:
        raise
    except Exception as error:  # configurations check themselves, each by errors of its own
        raise ConfigError(f"--model {folder}: its config.json does not describe a model ({one_line(error)})") from None
    check_followed(config.to_dict(), "--model")  # again, with what its class has for keys left out
    return config


def model_sizes(config: Any) -> ModelSizes:
    """Sizes of the language part of a configuration."""
    text = config.get_text_config()
    language, num_heads = language_model(text.model_type), text.num_attention_heads
    return ModelSizes(
        layer_heads=tuple(getattr(text, "num_attention_heads_per_layer", None) or [num_heads] * text.num_hidden_layers),
        num_kv_heads=min(_of_layers(text, "num_key_value_heads", num_heads)),
        head_dims=_of_layers(text, "head_dim", text.hidden_size // num_heads),
        vocab_size=text.vocab_size + (getattr(text, "additional_vocab_size", None) or 0),
        windows=_layer_windows(text, window_of(config.to_dict())),
        groups=language.groups,
        softcap=text.final_logit_softcapping if "final_logit_softcapping" in language.caps else None,
        score_cap=text.attn_logit_softcapping if "attn_logit_softcapping" in language.caps else None,
    )


def _of_layers(text: Any, name: str, default: int) -> tuple[int, ...]:
    """A size of each layer: `transformers` refuses to say one for a model whose layers differ."""
    layers = range(text.num_hidden_layers)
    if getattr(text, "is_heterogeneous", False):
        return tuple(getattr(text.per_layer_config[layer], name) for layer in layers)
    return tuple(getattr(text, name, None) or default for _ in layers)


def _layer_windows(text: Any, window: int | None) -> tuple[int | None, ...]:
    if window is None:
        return ()
    kinds = getattr(text, "layer_types", None) or ["sliding_attention"] * text.num_hidden_layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


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
            f"has ids below {manifest.tokenizer.vocab_size}: pack with --set model=DIR of this model"
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
            "--set model=DIR of this model"
        )
    if packed_for is None and (family_of(config) is not None or has_images):
        raise ConfigError(
            f"the dataset was packed for no model, so its images are not those of {kind}: pack with --set model=DIR"
        )
    if packed_for is not None and has_images:
        of_dataset, of_model = _sizes_of_dataset(packed_for), _sizes_of_model(config)
        for what, size in of_model.items():
            if of_dataset.get(what, size) != size:
                packed, own = (what.format(found) for found in (of_dataset[what], size))
                raise ConfigError(
                    f"the dataset was packed for {packed} and the model has {own}: pack with --set model=DIR of this "
                    "model"
                )


PATCH, TIME, ROW = "patches of {} pixels", "patches of {} frames", "rows of {} patches along a side"
"""Sizes by which pictures become rows."""


def _sizes_of_dataset(packed_for: ModelEntry) -> dict[str, str]:
    encoder, settings = encoder_of(packed_for.settings), packed_for.settings
    if encoder is None:
        return {}
    row: Any = packed_for.merge if packed_for.axes == 3 else settings.get("pooling")
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
        ConfigError: it holds none, or quantised ones that do not become plain numbers exactly.
    """
    if not any(next(Path(folder).glob(pattern), None) for pattern in WEIGHTS):
        raise ConfigError(
            f"--model {folder} holds no weights ({' or '.join(WEIGHTS)}); give a folder with weights, or --from-scratch"
        )
    try:
        load_extra("quantised").check_quantised(folder)
    except ConfigError:
        raise
    except Exception as error:  # of a pickle that is damaged, any
        raise ConfigError(f"--model {folder}: its weights cannot be read ({one_line(error)})") from None


def identity(folder: str | Path, *, with_weights: bool = False) -> dict[str, str]:
    """Identity of a model: its kind, a hash of its ``config.json``, and one of its weights if asked for.

    Raises:
        ConfigError: its weights cannot be read.
    """
    stored = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    own = json.dumps(_without(stored), sort_keys=True)
    found = {"model_type": str(stored["model_type"]), "config": hashlib.sha256(own.encode()).hexdigest()[:16]}
    return found | ({"weights": _weights_hash(Path(folder))} if with_weights else {})


def _weights_hash(folder: Path) -> str:
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


def _without(values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    return {key: _without(value) for key, value in values.items() if key not in NOT_THE_MODEL}


def one_line(error: Exception) -> str:
    """The beginning of an error's message, without line breaks."""
    return " ".join(str(error).split())[:200]


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
