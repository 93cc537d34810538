"""Loads a Hugging Face model from its folder, with the attention of packs in place of its own.

``load_model`` makes the whole model. ``load_sharded`` makes it without weights, lets the caller shard it, and only then
fills each rank's part, so that no rank ever holds the whole.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor

from schemas.errors import ConfigError
from trainer.models.families import family_of
from trainer.models.folder import check_weights, one_line, read_model_config
from trainer.models.interface import PACKED, register_attention
from trainer.models.random_weights import draw_weights

Weights = Literal["folder", "random", "none"]
"""Where weights come from: the model folder, a seed, or, later, a checkpoint."""

Wrapped = TypeVar("Wrapped", bound=nn.Module)


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
) -> Wrapped:
    """A model whose parts are filled after it was sharded, each rank's by itself.

    From a folder, a rank reads the rows of each tensor that it holds. Random weights are drawn block by block. All
    buffers are set in any case.

    Args:
        folder: see :func:`load_model`.
        shard: is given the model without weights, on the meta device, shards it in place and may wrap it.
        dtype: of the parameters.
        weights: where they come from; with ``none`` parameters hold anything until a checkpoint is loaded.
        seed: of random weights.
        device: where parameters and buffers will lie.

    Raises:
        ConfigError: see :func:`load_model`.
    """
    transformers = register_attention()
    config = read_model_config(folder)
    if weights == "folder":
        check_weights(folder)
        wrapped = _read(_empty(transformers, config, dtype), folder, config, shard, dtype)
    else:
        model = _empty(transformers, config, dtype)
        wrapped = shard(model)
        wrapped.to_empty(device=device)
        model.tie_weights()
        _set(model, _empty(transformers, config, torch.float32), seed, only_buffers=weights == "none")
    wrapped.train()
    return wrapped.to(device) if torch.device(device).type != "cpu" else wrapped


def _attention(config: Any) -> Any:
    """Which attention each part of a model asks for."""
    if family_of(config) is None:
        return PACKED
    return dict.fromkeys(("", *config.sub_configs), "sdpa") | {"text_config": PACKED}


def _empty(transformers: Any, config: Any, dtype: torch.dtype) -> Any:
    """The model on the meta device. Its buffers have the dtypes that they have beside parameters in float32."""
    auto = transformers.AutoModelForCausalLM if family_of(config) is None else transformers.AutoModelForImageTextToText
    with torch.device("meta"):
        model = auto.from_config(copy.deepcopy(config), dtype=torch.float32, attn_implementation=_attention(config))
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    model.config.dtype = dtype
    return model


def _read(
    empty: Any, folder: str | Path, config: Any, shard: Callable[[nn.Module], Wrapped], dtype: torch.dtype
) -> Wrapped:
    """Loads a folder's weights into a model that is sharded on the way, by ``transformers``, which knows the names that
    weights have in published folders.
    """
    from transformers.distributed import DistributedConfig

    found: list[Wrapped] = []

    class Sharded(type(empty)):  # type: ignore[misc]
        """Takes the place in loading where ``transformers`` would shard the model its own way."""

        @classmethod
        def prepare_distribute_model(cls, config: Any, device_map: Any = None) -> tuple[Any, Any, None]:
            return config, device_map, None

        @classmethod
        def maybe_distribute_model(cls, model: Any, config: Any, manager: Any) -> Any:  # noqa: ARG003
            model.__class__ = type(empty)
            del model.config.distributed_config
            found.append(shard(model))
            return model

    # by these transformers finds what it knows of a published model's weights
    Sharded.__name__, Sharded.__module__ = type(empty).__name__, type(empty).__module__
    try:
        _, info = Sharded.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=_attention(config),
            local_files_only=True,
            output_loading_info=True,
            distributed_config=DistributedConfig(),
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ConfigError(f"--model {folder}: its weights cannot be read ({one_line(error)})") from None
    missing = sorted(info["missing_keys"])
    if missing:
        raise ConfigError(f"--model {folder} holds no weights for {missing[0]} and {len(missing) - 1} more; give all")
    return found[0]


def _set(model: nn.Module, whole: Any, seed: int, *, only_buffers: bool) -> None:
    """Fills a model's buffers, and this rank's part of its parameters with random weights."""
    targets: dict[str, Tensor] = dict(model.named_buffers())
    if not only_buffers:
        targets |= dict(model.named_parameters())
    left = set(targets)

    @torch.no_grad()
    def take(drawn: dict[str, Tensor]) -> None:
        for name in drawn.keys() & targets.keys():
            target, value = targets[name], drawn[name]
            left.discard(name)
            if isinstance(target, DTensor):
                part = distribute_tensor(
                    value.to(target.dtype), target.device_mesh, target.placements, src_data_rank=None
                )
                target.to_local().copy_(part.to_local())
            else:
                target.copy_(value)

    draw_weights(whole, seed, take, only_buffers=only_buffers)
    assert not left, f"nothing was drawn for {sorted(left)}"
