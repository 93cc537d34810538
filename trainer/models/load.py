"""Loads a Hugging Face model from its folder, with the attention of packs in place of its own.

``load_model`` makes the whole model. ``load_sharded`` makes it without weights, lets the caller shard it, and only then
fills each rank's part, so that no rank ever holds the whole.
"""

from __future__ import annotations

import copy
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.nn.modules.module import register_module_parameter_registration_hook

from preshard.schemas.errors import ConfigError
from preshard.trainer.models import compat
from preshard.trainer.models.families import family_of
from preshard.trainer.models.folder import check_weights, one_line, read_model_config
from preshard.trainer.models.interface import PACKED, register_attention
from preshard.trainer.models.random_weights import draw_weights

Weights = Literal["folder", "random", "none"]
"""Where weights come from: the model folder, a seed, or, later, a checkpoint."""

AHEAD = "HF_DEACTIVATE_ASYNC_LOAD"

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

    From a folder, a rank reads its rows, tensor by tensor. Random weights are drawn block by block. Buffers
    are set in any case.

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
    model = _empty(transformers, config, dtype)
    wrapped = shard(model)
    wrapped.to_empty(device=device)
    model.tie_weights()
    if weights == "folder":
        _read(model, folder, dtype)
    else:
        only_buffers = weights == "none"
        fill = _Fill(model, only_buffers=only_buffers)
        draw_weights(_empty(transformers, config, torch.float32), seed, fill, only_buffers=only_buffers)
        assert not fill.left, f"nothing was drawn for {sorted(fill.left)}"
    return wrapped.train()


def _attention(config: Any) -> Any:
    """Which attention each part of a model asks for."""
    if family_of(config) is None:
        return PACKED
    return dict.fromkeys(("", *config.sub_configs), "sdpa") | {"text_config": PACKED}


def _empty(transformers: Any, config: Any, dtype: torch.dtype) -> Any:
    """The model on the meta device. Its buffers have the dtypes that they have beside parameters in float32."""
    auto = transformers.AutoModelForCausalLM if family_of(config) is None else transformers.AutoModelForImageTextToText
    try:
        with torch.device("meta"):
            model = auto.from_config(copy.deepcopy(config), dtype=torch.float32, attn_implementation=_attention(config))
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
    return model


def _read(model: Any, folder: str | Path, dtype: torch.dtype) -> None:
    """Fills a model from a folder by ``transformers``, which knows the names and forms of published weights.

    It loads a second model that is sharded like the first, so that ``transformers`` reads this rank's rows alone; an
    old one reads whole tensors, one at a time. Each parameter gives the first one its part as soon as it is there, and
    goes back to the meta device.
    """
    from safetensors import SafetensorError

    fill = _Fill(model)
    tied: dict[str, str] = getattr(model, "all_tied_weights_keys", {})
    sharded = {name: each for name, each in model.named_parameters() if isinstance(each, DTensor)}
    paths: dict[nn.Module, str] = {}

    def pass_on(module: nn.Module, name: str, parameter: nn.Parameter | None) -> Any:
        if module not in paths or parameter is None or parameter.is_meta:
            return None
        path = f"{paths[module]}.{name}".lstrip(".")
        fill({tied.get(path, path): parameter})
        empty = torch.empty(parameter.shape, dtype=parameter.dtype, device="meta")
        passed: Any = nn.Parameter(empty, requires_grad=False)
        passed._is_hf_initialized = True
        return passed

    class Passing(type(model)):  # type: ignore[misc]
        """Shows its modules before weights are read, and has its parameters sharded where they are read by rows."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            paths.update({module: path for path, module in self.named_modules()})
            if compat.has(compat.OWN_ROWS):
                _shard_alike(self, sharded, tied)

    # by these transformers finds what it knows of a published model's weights
    Passing.__name__, Passing.__module__ = type(model).__name__, type(model).__module__
    try:
        with _one_tensor_at_a_time(), register_module_parameter_registration_hook(pass_on):
            passing, info = Passing.from_pretrained(
                folder,
                dtype=dtype,
                local_files_only=True,
                output_loading_info=True,
            )
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise ConfigError(f"--model {folder}: its weights cannot be read ({one_line(error)})") from None
    fill(dict(passing.named_buffers()))
    if missing := fill.left | set(info["missing_keys"]):
        first, *more = sorted(missing)
        raise ConfigError(
            f"--model {folder} has no weights for {first} and {len(more)} more parameters; give a complete folder"
        )


def _shard_alike(model: Any, sharded: Mapping[str, DTensor], tied: Mapping[str, str]) -> None:
    """Gives the parameters of a model on the meta device the sharding of others of the same names.

    Those that are made of other tensors stay whole, unless each row is made of the same rows. One that has no row here
    stays whole, too, as nothing can be made of nothing.
    """
    made = _made_of_others(model)
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False, remove_duplicate=False):
            full = f"{path}.{name}".lstrip(".")
            like = sharded.get(tied.get(full, full))
            by_rows = [keeps for fragment, keeps in made if fragment in full]
            if like is None or not all(by_rows) or (by_rows and not _has_rows_alone(like)):
                continue
            local = torch.empty(like.to_local().shape, dtype=parameter.dtype, device="meta")
            part = DTensor.from_local(
                local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
            )
            module._parameters[name] = nn.Parameter(part, requires_grad=False)


def _has_rows_alone(sharded: DTensor) -> bool:
    """Whether a parameter is sharded by rows and this rank has some."""
    by_rows = all(placement.dim == 0 for placement in sharded.placements if isinstance(placement, Shard))
    return by_rows and len(sharded.to_local()) > 0


def _made_of_others(model: Any) -> list[tuple[str, bool]]:
    """The longest literal part of each pattern of names whose values ``transformers`` makes of other tensors, and
    whether a row of them is made of the same row of each, or of the tensor of its number, as an expert's.
    """
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter

    converters = [each for each in get_model_conversion_mapping(model) if isinstance(each, WeightConverter)]
    return [
        (max(re.split(r"[^\w.]|\\.", pattern), key=len), all(map(_keeps_rows, each.operations)))
        for each in converters
        for pattern in each.target_patterns
    ]


def _keeps_rows(operation: Any) -> bool:
    """Whether an operation of ``transformers`` on some rows gives those rows of what it gives on all."""
    from transformers.core_model_loading import Concatenate, MergeModulelist, Transpose

    if isinstance(operation, MergeModulelist):
        return bool(operation.dim == 0)
    if isinstance(operation, Concatenate):
        return bool(operation.dim >= 1)
    # one that compares shapes would take those of some rows for transposed ones
    return isinstance(operation, Transpose) and min(operation.dim0, operation.dim1) >= 1 and not operation.check_dims


@contextmanager
def _one_tensor_at_a_time() -> Iterator[None]:
    """``transformers`` reads tensors ahead in threads, without a bound on how many, unless this variable is set."""
    before = os.environ.get(AHEAD)
    os.environ[AHEAD] = "1"
    try:
        yield
    finally:
        os.environ.pop(AHEAD)
        os.environ |= {} if before is None else {AHEAD: before}


class _Fill:
    """Fills buffers, and this rank's part of parameters, from tensors that come one by one, whole or as that part.

    Attributes:
        left: names of what has not come yet.
    """

    def __init__(self, model: nn.Module, *, only_buffers: bool = False) -> None:
        self._targets: dict[str, Tensor] = dict(model.named_buffers())
        if not only_buffers:
            self._targets |= dict(model.named_parameters())
        self.left = set(self._targets)

    @torch.no_grad()
    def __call__(self, tensors: Mapping[str, Tensor]) -> None:
        for name in tensors.keys() & self._targets.keys():
            target, value = self._targets[name], tensors[name]
            self.left.discard(name)
            if isinstance(target, DTensor):
                target.to_local().copy_(value.to_local() if isinstance(value, DTensor) else _part_of(value, target))
            else:
                target.copy_(value)


def _part_of(whole: Tensor, sharded: DTensor) -> Tensor:
    """This rank's part of a tensor, as a view. It is that of ``distribute_tensor``, which would make copies."""
    place = sharded.device_mesh.get_coordinate()
    assert place is not None
    for axis, placement in enumerate(sharded.placements):
        if isinstance(placement, Shard):
            parts = whole.chunk(sharded.device_mesh.size(axis), placement.dim)
            empty = whole.narrow(placement.dim, 0, 0)
            whole = parts[place[axis]] if place[axis] < len(parts) else empty
    return whole
