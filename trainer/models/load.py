"""Loads a Hugging Face model from its folder, with the attention of packs in place of its own.

``load_model`` makes the whole model. ``load_sharded`` makes it without weights, lets the caller shard it, and only then
fills each rank's part, so that no rank ever holds the whole.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from preshard.schemas.errors import ConfigError
from preshard.schemas.model.languages import DIVISOR, language_model, window_of
from preshard.trainer.attention.mask import Groups
from preshard.trainer.extras import load_extra
from preshard.trainer.models.interface import ENCODER, PACKED, family_of, load_states, register_attention

Weights = Literal["folder", "random", "none"]
"""Sources of weights: the model folder, a seed, or, later, a checkpoint."""

GENERATION = "generation_config.json"
"""File of a model folder by which it generates: when to stop, and how to sample."""

Wrapped = TypeVar("Wrapped", bound=nn.Module)

WEIGHTS = ("*.safetensors", "pytorch_model*.bin")
"""Files of a model folder that hold weights."""

NOT_THE_MODEL = ("_name_or_path", "architectures", "dtype", "torch_dtype", "transformers_version", "use_cache")
"""Keys of ``config.json`` that may change while the model stays the same."""


def load_model(
    folder: str | Path, *, dtype: torch.dtype = torch.float32, from_scratch: bool = False, seed: int = 0
) -> nn.Module:
    """The model of a folder as ``transformers`` builds it, on the CPU and in training mode.

    Nothing of it is patched. Its language model asks the registered attention of packs instead of its own, layers with
    a state have a forward of their own, and its vision encoder keeps ``sdpa``, unless it takes images side by side.

    Args:
        folder: as ``save_pretrained`` or a snapshot leaves it. Nothing is downloaded.
        dtype: of the parameters. What the model computes in float32 whatever its dtype, such as rotary frequencies,
            stays in float32.
        from_scratch: random weights of that configuration. They follow from ``seed`` alone: they are drawn in float32
            and converted.
        seed: of random weights.

    Raises:
        ConfigError: transformers is not installed, the folder holds no model, or not all its weights, the model is of
            no supported kind, or it does something to its attention or its logits that packs cannot follow.
    """
    return load_sharded(
        folder, lambda model: model, dtype=dtype, weights="random" if from_scratch else "folder", seed=seed
    )


def load_sharded(
    folder: str | Path,
    shard: Callable[[nn.Module], Wrapped],
    *,
    dtype: torch.dtype = torch.float32,
    weights: Weights = "folder",
    seed: int = 0,
    device: torch.device | str = "cpu",
    on_host: bool = False,
) -> Wrapped:
    """A model whose parts are filled after it was sharded, each rank's by itself.

    From a folder, a rank reads its rows, tensor by tensor. Random weights are drawn block by block. Buffers
    are set in any case, and so are adapters, by the seed.

    Args:
        folder: see :func:`load_model`.
        shard: is given the model without weights, on the meta device, shards it in place and may wrap it, also with
            ``peft.get_peft_model(..., low_cpu_mem_usage=True)``.
        dtype: of the parameters.
        weights: where they come from; with ``none`` parameters hold anything until a checkpoint is loaded.
        seed: of random weights.
        device: where parameters and buffers will lie.
        on_host: parameters lie in the host's memory, as
            :func:`~preshard.trainer.core.sharding.shard_model` was told.

    Raises:
        ConfigError: see :func:`load_model`; or there are adapters other than those of ``peft.LoraConfig``.
    """
    transformers = register_attention()
    config = read_model_config(folder)
    if weights == "folder":
        load_extra("model_check").check_weights(folder)
    model = _empty(transformers, config, dtype)
    if (Path(folder) / GENERATION).is_file():
        with suppress(OSError):  # as from_pretrained does
            model.generation_config = transformers.GenerationConfig.from_pretrained(folder)
    wrapped = shard(model)
    if on_host:
        make_room_on_host(wrapped, device)
    else:
        wrapped.to_empty(device=device)
    model.tie_weights()
    make = partial(_empty, transformers, config)
    load_extra("weights").fill(model, folder, dtype, weights=weights, seed=seed, make=make)
    return wrapped.train()


def make_room_on_host(model: nn.Module, device: torch.device | str) -> None:
    """Gives parameters memory on the host, and buffers on the device."""
    model.to_empty(device="cpu")
    for module in model.modules():
        for name, buffer in module.named_buffers(recurse=False):
            module._buffers[name] = torch.empty_like(buffer, device=device)


def empty_model(folder: str | Path) -> nn.Module:
    """The model of a folder without weights, on the meta device: its parameters' names and shapes.

    Raises:
        ConfigError: see :func:`load_model`.
    """
    model: nn.Module = _empty(register_attention(), read_model_config(folder), torch.float32)
    return model


def _convert_parameters(model: nn.Module, dtype: torch.dtype) -> None:
    for part in model.modules():
        for name, parameter in list(part.named_parameters(recurse=False)):
            parameter.data = parameter.data.to(dtype)
            if not parameter.is_meta:  # drawn by torch.normal, which heeds no context
                setattr(part, name, nn.Parameter(parameter.to("meta")))


def _attention(config: Any) -> Any:
    """Attention that each part of a model asks for."""
    if family_of(config) is None:
        return PACKED
    # encoders of audio may have no sdpa, and packs do not reach them
    seen = [name for name in config.sub_configs if name != "audio_config"]
    return dict.fromkeys(("", *seen), "sdpa") | {"text_config": PACKED}


def _empty(transformers: Any, config: Any, dtype: torch.dtype) -> Any:
    """The model on the meta device. Its buffers have the dtypes that they have beside parameters in float32, or in
    float64.
    """
    family = family_of(config)
    auto = transformers.AutoModelForCausalLM if family is None else transformers.AutoModelForImageTextToText
    try:
        with torch.device("meta"):
            own = load_extra("quantised").without_quantisation(copy.deepcopy(config))
            made = dtype if dtype == torch.float64 else torch.float32
            model = auto.from_config(own, dtype=made, attn_implementation=_attention(config))
    except Exception as error:  # sizes that do not fit each other end in any error
        kind = config.model_type
        raise ConfigError(
            f"--model: transformers cannot build {kind} from its config.json ({one_line(error)})"
        ) from None
    if getattr(model.get_output_embeddings(), "bias", None) is not None:
        raise ConfigError(
            f"--model: the output projection of {config.model_type} has a bias, which the loss does not add: take a "
            "model without"
        )
    _convert_parameters(model, dtype)
    model.config.dtype = dtype
    # products of groups, which experts take by default, do not exist in float64; a part may have experts without the
    # whole knowing of them
    for part in model.modules() if dtype == torch.float64 else ():
        if getattr(part, "_can_set_experts_implementation", bool)():
            part.set_experts_implementation("eager")
    if (states := load_states(config)) is not None:
        states.follow_states(model)
    if hasattr(config.get_text_config(), "kv_lora_rank"):
        load_extra("latents").leave_latents(model)
    if family is not None and family.side_by_side:  # as transformers builds it, it would look for a package by the name
        for module in model.modules():
            if isinstance(getattr(module, "config", None), type(config.vision_config)):
                module.config._attn_implementation = ENCODER
    for part in () if family is None else family.unused:
        if (module := getattr(model.base_model, part, None)) is not None:
            module.requires_grad_(False)
    return model


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """Sizes of a model's language part.

    Attributes:
        layer_heads: query heads of each layer.
        num_kv_heads: key and value heads, of the layer with the fewest.
        head_dims, value_dims: width of a head of queries and keys in each layer, and of one of values.
        vocab_size: rows of the embedding.
        windows: tokens that each layer sees, None for a layer without a sliding window; empty if no layer has one.
        groups: in which layers bidirectional groups hold.
        softcap: what the logits are capped at, None if they are not.
        score_cap: the same of the scores of attention.
        divisor: what the output projection's input is divided by.
    """

    layer_heads: tuple[int, ...]
    num_kv_heads: int
    head_dims: tuple[int, ...]
    value_dims: tuple[int, ...]
    vocab_size: int
    windows: tuple[int | None, ...]
    groups: Groups
    softcap: float | None
    score_cap: float | None
    divisor: float

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
    load_extra("stored").check_folder(folder)
    try:
        stored = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        load_extra("model_check").check_stored(stored)
        config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    except ConfigError:
        raise
    except Exception as error:  # configurations check themselves, each by errors of its own
        raise ConfigError(f"--model {folder}: its config.json does not describe a model ({one_line(error)})") from None
    load_extra("model_check").check_config(config)
    load_extra("stored").follow_ties(config, folder)
    return config


def model_sizes(config: Any) -> ModelSizes:
    """Sizes of the language part of a configuration."""
    text = config.get_text_config()
    language, num_heads = language_model(text.model_type), text.num_attention_heads
    key = "qk_head_dim" if hasattr(text, "qk_head_dim") else "head_dim"  # which is that of a part there
    keys = _of_layers(text, key, text.hidden_size // num_heads)
    return ModelSizes(
        layer_heads=tuple(getattr(text, "num_attention_heads_per_layer", None) or [num_heads] * text.num_hidden_layers),
        num_kv_heads=min(_of_layers(text, "num_key_value_heads", num_heads)),
        head_dims=keys,
        value_dims=_of_layers(text, "v_head_dim", 0) if hasattr(text, "v_head_dim") else keys,
        vocab_size=text.vocab_size + (getattr(text, "additional_vocab_size", None) or 0),
        windows=_layer_windows(text, window_of(config.to_dict())),
        groups=language.groups,
        softcap=text.final_logit_softcapping if "final_logit_softcapping" in language.caps else None,
        score_cap=text.attn_logit_softcapping if "attn_logit_softcapping" in language.caps else None,
        divisor=text.logits_scaling if DIVISOR in language.caps else 1,
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


def identity(folder: str | Path, *, with_weights: bool = False) -> dict[str, str]:
    """Identity of a model: its kind, a hash of its ``config.json``, and one of its weights if asked for.

    Raises:
        ConfigError: its weights cannot be read.
    """
    stored = json.loads((Path(folder) / "config.json").read_text(encoding="utf-8"))
    own = json.dumps(_without(stored), sort_keys=True)
    found = {"model_type": str(stored["model_type"]), "config": hashlib.sha256(own.encode()).hexdigest()[:16]}
    return found | ({"weights": load_extra("model_check").weights_hash(Path(folder))} if with_weights else {})


def _without(values: Any) -> Any:
    if not isinstance(values, dict):
        return values
    return {key: _without(value) for key, value in values.items() if key not in NOT_THE_MODEL}


def one_line(error: Exception) -> str:
    """The beginning of an error's message, without line breaks."""
    return " ".join(str(error).split())[:200]
