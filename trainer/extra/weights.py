"""Fills a model that was made without weights: from a folder, by what each rank needs, or from a seed alone.

Random weights do not depend on the number of ranks, the dtype, or what was drawn before.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Shard
from torch.nn.modules.module import register_module_parameter_registration_hook

from preshard.schemas.errors import ConfigError
from preshard.schemas.files.printed import several
from preshard.schemas.model.families import Version
from preshard.trainer.extras import load_extra
from preshard.trainer.families.family import has_transformers
from preshard.trainer.models.interface import base_names, block_paths
from preshard.trainer.models.load import one_line

OWN_ROWS: Version = (5, 15)
"""``from_pretrained`` reads of a sharded parameter this rank's rows alone. Before, each rank reads whole tensors."""

AHEAD = "HF_DEACTIVATE_ASYNC_LOAD"


def fill(
    model: Any, folder: str | Path, dtype: torch.dtype, *, weights: str, seed: int, make: Callable[[torch.dtype], Any]
) -> None:
    """Fills the parameters of a model that was made, and sharded, without any; its buffers in any case, and adapters.

    Args:
        model: on its device.
        folder: that it is of.
        dtype: of its parameters.
        weights: where they come from: ``folder``, ``random``, or ``none`` if they may hold anything.
        seed: of random ones, and of adapters.
        make: gives another such model on the meta device, of a dtype.
    """
    if weights == "folder":
        read_weights(model, folder, dtype)
    else:
        only_buffers = weights == "none"
        fill = Fill(model, only_buffers=only_buffers)
        drawn = dtype if only_buffers else torch.float32
        draw_weights(make(drawn), seed, fill, only_buffers=only_buffers)
        assert not fill.left, f"nothing was drawn for {sorted(fill.left)}"
        if dtype == torch.float64 and not only_buffers:  # buffers of the model that was drawn are rounded
            draw_weights(make(dtype), seed, Fill(model, only_buffers=True), only_buffers=True)
    draw_adapters(model, seed)


def read_weights(model: Any, folder: str | Path, dtype: torch.dtype) -> None:
    """Fills a model from a folder by ``transformers``, which knows the names and forms of published weights.

    It loads a second model that is sharded like the first, so that ``transformers`` reads this rank's rows alone; an
    old one reads whole tensors, one at a time, and so does any where they are quantised. Each parameter gives the first
    one its part as soon as it is there, and goes back to the meta device.
    """
    from safetensors import SafetensorError

    fill = Fill(model)
    tied: dict[str, str] = getattr(model, "all_tied_weights_keys", {})
    names = base_names(model)
    sharded = {
        names[name]: each for name, each in model.named_parameters() if name in names and isinstance(each, DTensor)
    }
    paths: dict[nn.Module, str] = {}
    quantised: dict[str, Any] = load_extra("quantised").as_plain_numbers(folder)

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
            if has_transformers(OWN_ROWS) and not quantised:  # rows of codes would meet scales of other rows
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
                ignore_mismatched_sizes=True,  # which is said below, in one line
                **quantised,
            )
    except (ImportError, OSError, RuntimeError, ValueError, SafetensorError) as error:
        raise ConfigError(f"--model {folder}: its weights cannot be read ({one_line(error)})") from None
    fill(dict(passing.named_buffers()))
    if info["mismatched_keys"]:
        raise _of_other_sizes(model, Path(folder), min(name for name, *_ in info["mismatched_keys"]))
    if missing := fill.left | set(info["missing_keys"]):
        first, *more = sorted(missing)
        others = f" and {several(len(more), 'more parameter')}" if more else ""
        strange = f", and has {min(info['unexpected_keys'])}" if info["unexpected_keys"] else ""
        raise ConfigError(f"--model {folder} has no weights for {first}{others}{strange}; give a complete folder")


def _of_other_sizes(model: Any, folder: Path, name: str) -> ConfigError:
    """Error that names a tensor with both of its shapes; a rank has seen its own rows alone."""
    stored = next((each.shape for each in load_extra("stored").stored_tensors(folder) if each.name.endswith(name)), "?")
    wanted = next(each.shape for own, each in model.state_dict().items() if own.endswith(name))
    return ConfigError(
        f"--model {folder}: {name} is stored as {list(stored)}, and by config.json it is {list(wanted)}: give the "
        "config.json of these weights, as save_pretrained writes it"
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


class Fill:
    """Fills buffers, and this rank's part of parameters, from tensors that come one by one, whole or as that part.

    Names are those of a model without adapters, whose own values do not count.

    Attributes:
        left: names of what has not come yet.
    """

    def __init__(self, model: nn.Module, *, only_buffers: bool = False) -> None:
        targets: dict[str, Tensor] = dict(model.named_buffers())
        if not only_buffers:
            targets |= dict(model.named_parameters())
        self._targets = {name: targets[full] for full, name in base_names(model).items() if full in targets}
        self.left = set(self._targets)

    @torch.no_grad()
    def __call__(self, tensors: Mapping[str, Tensor]) -> None:
        for name in tensors.keys() & self._targets.keys():
            target, value = self._targets[name], tensors[name]
            self.left.discard(name)
            _fill_one(target, value)


def _fill_one(target: Tensor, value: Tensor) -> None:
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


def draw_weights(
    model: Any, seed: int, take: Callable[[dict[str, Tensor]], None], *, only_buffers: bool = False
) -> None:
    """Draws the weights of a model as its own class does, and sets its buffers, one part at a time.

    A part is one of the blocks that the model says are not to be split, or all that lies outside of them. Each has
    random numbers of its own, from the seed and its name, in float32 on the CPU. No two parts exist at once.

    Args:
        model: a model of ``transformers`` on the meta device, where it is again in the end.
        seed: of the numbers.
        take: called with parameters and buffers of each part by their names in the model.
        only_buffers: leave parameters on the meta device, where drawing costs nothing.

    Raises:
        ConfigError: the model's class sets no values for some of them.
    """
    parts = list(_parts(model))
    passed_over: list[Any] = list(model.modules())
    for each in passed_over:
        each._is_hf_initialized = True  # what initialize_weights asks
    for name, modules in parts:
        drawn: list[Any] = list(modules.values())
        for each in drawn:
            _make_room(each, only_buffers)
            each._is_hf_initialized = False
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_seed_of(seed, name))
            model.initialize_weights()
        _set_what_is_left(model, modules, only_buffers)
        take(_tensors(modules))
        for module in modules.values():
            module.to_empty(device="meta", recurse=False)


def _parts(model: nn.Module) -> Iterator[tuple[str, dict[str, nn.Module]]]:
    """Each part's name, and its modules by their paths."""
    rest = dict(model.named_modules())
    for path in block_paths(model):
        inside = {name: rest.pop(name) for name in list(rest) if name == path or name.startswith(f"{path}.")}
        yield path, inside
    yield "", rest


@torch.no_grad()
def _make_room(module: nn.Module, only_buffers: bool) -> None:
    """Gives parameters and buffers memory, with numbers in it that nobody draws."""
    if not only_buffers:
        module.to_empty(device="cpu", recurse=False)
    for name, buffer in module.named_buffers(recurse=False) if only_buffers else ():
        setattr(module, name, torch.empty_like(buffer, device="cpu"))
    for _, tensor in _own_tensors(module):
        if tensor.is_floating_point() and not tensor.is_meta:
            tensor.fill_(math.nan)


@torch.no_grad()
def _set_what_is_left(model: Any, modules: Mapping[str, nn.Module], only_buffers: bool) -> None:
    """Sets what initialising has not to what a new module of the class has.

    Raises:
        ConfigError: the class makes no module by itself, and no checkpoint holds the number.
    """
    for path, module in modules.items():
        for name, tensor in _own_tensors(module):
            if not tensor.is_floating_point() or tensor.is_meta or not bool(tensor.isnan().any()):
                continue
            try:
                tensor.copy_(dict(_own_tensors(type(module)()))[name])
            except (TypeError, KeyError, RuntimeError):
                if only_buffers and name not in module._non_persistent_buffers_set:
                    continue
                raise ConfigError(
                    f"--from-scratch: transformers draws no {path}.{name} of {model.config.model_type}: take a folder "
                    "with weights"
                ) from None


def _own_tensors(module: nn.Module) -> list[tuple[str, Tensor]]:
    return [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]


def _tensors(modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    """The modules' own parameters and buffers, by their names in the model."""
    return {
        f"{path}.{name}" if path else name: tensor.detach()
        for path, module in modules.items()
        for name, tensor in _own_tensors(module)
    }


@torch.no_grad()
def draw_adapters(model: Any, seed: int) -> None:
    """Draws what ``peft`` has put into a model, one adapter at a time, as ``LoraConfig`` does by default: one matrix of
    each as ``nn.Linear`` draws its own (He et al. 2015), the other of zeros, so that nothing is added yet.

    Each has random numbers of its own, from the seed and its name, whatever the ranks and the dtype.

    Raises:
        ConfigError: there is something else than such adapters.
    """
    configs, names = (getattr(model, "peft_config", None) or {}).values(), base_names(model)
    for name, parameter in model.named_parameters():
        if name in names:
            continue
        drawn = torch.zeros(parameter.shape)
        if ".lora_A." in name:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(_seed_of(seed, name))
                nn.init.kaiming_uniform_(drawn, a=math.sqrt(5))
        elif ".lora_B." not in name or any(config.init_lora_weights is not True for config in configs):
            raise ConfigError(
                f"{name} belongs to an adapter that load_sharded cannot initialise: take LoraConfig's adapters of "
                "linear layers, with init_lora_weights=True"
            )
        _fill_one(parameter, drawn)


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little", signed=True)
