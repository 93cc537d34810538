"""Random weights that follow from a seed alone: not from the number of ranks, the dtype, or what was drawn before."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from preshard.trainer.models.blocks import block_paths


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


def _make_room(module: nn.Module, only_buffers: bool) -> None:
    if not only_buffers:
        module.to_empty(device="cpu", recurse=False)
        return
    for name, buffer in module.named_buffers(recurse=False):
        setattr(module, name, torch.empty_like(buffer, device="cpu"))


def _tensors(modules: dict[str, nn.Module]) -> dict[str, Tensor]:
    """The modules' own parameters and buffers, by their names in the model."""
    return {
        f"{path}.{name}" if path else name: tensor.detach()
        for path, module in modules.items()
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False))
    }


def _seed_of(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "little", signed=True)
