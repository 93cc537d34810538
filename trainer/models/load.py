"""Loads a Hugging Face model from its folder, with the attention of packs in place of its own.

``load_model`` makes the whole model. ``load_sharded`` makes it without weights, lets the caller shard it, and only then
fills each rank's part, so that no rank ever holds the whole.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import nn

from preshard.schemas.errors import ConfigError
from preshard.trainer.extras import load_extra
from preshard.trainer.families.family import family_of
from preshard.trainer.models.folder import one_line, read_model_config
from preshard.trainer.models.interface import ENCODER, PACKED, register_attention
from preshard.trainer.models.stateful import load_states
from preshard.trainer.models.weights import Fill, draw_adapters, draw_weights, read_weights

Weights = Literal["folder", "random", "none"]
"""Sources of weights: the model folder, a seed, or, later, a checkpoint."""

GENERATION = "generation_config.json"
"""File of a model folder by which it generates: when to stop, and how to sample."""

Wrapped = TypeVar("Wrapped", bound=nn.Module)


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
    if weights == "folder":
        read_weights(model, folder, dtype)
    else:
        only_buffers = weights == "none"
        fill = Fill(model, only_buffers=only_buffers)
        drawn = dtype if only_buffers else torch.float32
        draw_weights(_empty(transformers, config, drawn), seed, fill, only_buffers=only_buffers)
        assert not fill.left, f"nothing was drawn for {sorted(fill.left)}"
        if dtype == torch.float64 and not only_buffers:  # buffers of the model that was drawn are rounded
            draw_weights(_empty(transformers, config, dtype), seed, Fill(model, only_buffers=True), only_buffers=True)
    draw_adapters(model, seed)
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
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    # products of groups, which experts take by default, do not exist in float64; a part may have experts without the
    # whole knowing of them
    for part in model.modules() if dtype == torch.float64 else ():
        if getattr(part, "_can_set_experts_implementation", bool)():
            part.set_experts_implementation("eager")
    if (states := load_states(config)) is not None:
        states.follow_states(model)
    if family is not None and family.side_by_side:  # as transformers builds it, it would look for a package by the name
        for module in model.modules():
            if isinstance(getattr(module, "config", None), type(config.vision_config)):
                module.config._attn_implementation = ENCODER
    for part in () if family is None else family.unused:
        if (module := getattr(model.base_model, part, None)) is not None:
            module.requires_grad_(False)
    return model
