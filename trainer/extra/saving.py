"""Ways to train with less memory, for any model of ``transformers``. None changes what is computed.

* Blocks are computed again in the backward pass, whole or all but their attention.
* What is left of a block until then, its input, waits in the host's memory or on a disk.
* The MLPs of the language model take the tokens in tiles, so that their wide activations exist for one tile at a time.

What a rank holds of parameters, gradients and AdamW's means is
:func:`preshard.trainer.core.sharding.shard_model`'s to keep on the host.
"""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, BinaryIO, Literal, get_args

import numpy as np
import torch
import torch.nn.attention.varlen  # one of its operators is kept
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from preshard.schemas.errors import ConfigError
from preshard.schemas.model.savings import RECOMPUTE, Offload
from preshard.trainer.attention.kept import KeptResults
from preshard.trainer.core.config import TrainConfig
from preshard.trainer.models.interface import PACKED, decoder_layers

Waiting = Literal["none", "host", "disk"]
WAITING: tuple[Waiting, ...] = get_args(Waiting)


def inputs_wait(offload: Offload) -> Waiting:
    """Place where the inputs of blocks that are computed again wait."""
    return "none" if offload == "state" else "host" if offload == "all" else offload


MLP_NAMES = ("mlp", "feed_forward", "block_sparse_moe")
"""Names under which blocks hold what treats each token by itself. Anything else might mix tokens, and is not tiled."""

SMALL = 2**16
"""Bytes below which a tensor is not worth a file."""

_aten = torch.ops.aten
KEPT: frozenset[Any] = frozenset(
    {
        _aten._scaled_dot_product_flash_attention_for_cpu.default,
        _aten._scaled_dot_product_flash_attention.default,
        _aten._scaled_dot_product_efficient_attention.default,
        _aten._scaled_dot_product_cudnn_attention.default,
        torch.ops.torch_attn._varlen_attn.default,
    }
)
"""Operators that ``selective`` keeps besides the attention of packs: those of vision encoders, and of any model."""


def save_memory(
    model: nn.Module,
    *,
    recompute: str = "none",
    offload: Any = "none",
    mlp_tiles: int = 1,
    device_type: str = "cpu",
    noise: bool = True,
) -> None:
    """Sets a model up, in place. Call it before the model is sharded.

    Args:
        model: from ``preshard.models.load_model``.
        recompute: ``full`` computes each block again in the backward pass, ``selective`` all of it but attention, whose
            outputs are kept.
        offload: where the blocks' inputs wait for the backward pass: ``host`` is page-locked memory of the machine,
            ``disk`` a file without a name in the folder for temporary files.
        mlp_tiles: in how many parts the MLPs of the language model take a rank's tokens (Bekman et al. 2025, Arctic
            Long Sequence Training). Each part is computed again in the backward pass.
        device_type: where the model will compute.
        noise: whether recomputed blocks draw dropout and the like;
            :func:`~preshard.trainer.extra.preferences.train_without_noise` turns it off elsewhere.

    Raises:
        ConfigError: a name is unknown, the settings do not fit each other, or the model has no MLP of a known name.
    """
    if offload not in WAITING:
        raise ConfigError(
            f"offload is {offload!r}; take one of {', '.join(WAITING)}, and shard_model(..., on_host=True) to keep "
            "parameters and the optimiser's state on the host"
        )
    check_saving(recompute, offload, device_type)
    if mlp_tiles > 1:
        tile_mlps(model, mlp_tiles)
    if recompute != "none":
        _recompute_blocks(model, selective=recompute == "selective", offload=offload, noise=noise)


def save_memory_of(model: nn.Module, config: TrainConfig, device_type: str) -> None:
    """Sets a model up as a run's options say."""
    save_memory(
        model,
        recompute=config.recompute,
        offload=inputs_wait(config.offload),
        mlp_tiles=config.mlp_tiles,
        device_type=device_type,
        noise=config.loss == "next_token",
    )


def check_saving(recompute: str, offload: Offload, device_type: str) -> None:
    """Checks settings of :func:`save_memory` before there is a model.

    Raises:
        ConfigError: a name is unknown, or the settings do not fit each other or the device.
    """
    if recompute not in RECOMPUTE:
        raise ConfigError(f"--recompute is {recompute!r}; take one of {', '.join(RECOMPUTE)}")
    if inputs_wait(offload) != "none" and recompute == "none":
        raise ConfigError(f"--offload is {offload} and --recompute is none; it moves the inputs of "
                          "recomputed blocks: add --recompute full or selective")  # fmt: skip
    if offload in ("host", "state", "all") and device_type == "cpu":
        raise ConfigError(
            f"--offload is {offload} and the model computes on the CPU, in that same memory: use disk, or none"
        )


def _recompute_blocks(model: Any, *, selective: bool, offload: str, noise: bool) -> None:
    of_packs = set(decoder_layers(model)) if model.get_decoder().config._attn_implementation == PACKED else set()
    waiting: dict[str, Callable[[], AbstractContextManager[None]]] = {
        "none": nullcontext,
        "host": lambda: saved_tensors_hooks(
            to_host, lambda stored: stored.back() if isinstance(stored, OnHost) else stored
        ),
        "disk": lambda: saved_tensors_hooks(_to_file, _from_file),
    }

    def recomputed(block: nn.Module, forward: Callable[..., Any], *args: Any) -> Any:
        settings: dict[str, Any] = {"use_reentrant": False}
        if selective:
            settings["context_fn"] = all_but_packed_attention if block in of_packs else all_but_attention
        with waiting[offload]():
            return checkpoint(forward if noise else partial(_without_noise, block, forward), *args, **settings)

    # activation_checkpointing_enable calls it in turn; transformers 5.22 and older have that under another name
    model._set_gradient_checkpointing(enable=True, gradient_checkpointing_func=recomputed)
    for module in model.modules():
        if hasattr(module, "_gradient_checkpointing_func"):
            module._gradient_checkpointing_func = partial(recomputed, module)


def _without_noise(block: nn.Module, forward: Callable[..., Any], *args: Any) -> Any:
    block.training = False
    try:
        return forward(*args)
    finally:
        block.training = True


class _Both:
    """Two contexts as one, to be entered as often as they can be."""

    def __init__(self, outer: AbstractContextManager[Any], inner: AbstractContextManager[Any]) -> None:
        self.outer, self.inner = outer, inner

    def __enter__(self) -> None:
        self.outer.__enter__()
        self.inner.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.inner.__exit__(*error)
        self.outer.__exit__(*error)


def all_but_packed_attention() -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
    """The contexts of a block's forward and of its repetition, where all attention is that of packs, which keeps its
    results itself. Without torch's modes the host spends nothing on the block's other operators.
    """
    kept = KeptResults()
    return kept.forward, kept.again


def all_but_attention() -> tuple[_Both, _Both]:
    """The same where attention, whose work grows with the square of a document's length, may be any."""
    kept = KeptResults()

    def policy(_context: Any, function: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
        # The repetition skips the operators inside of kept attention, and torch tells operators by their number.
        is_kept = function in KEPT and not kept.forward.calls
        return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE

    modes = create_selective_checkpoint_contexts(policy)
    return _Both(kept.forward, modes[0]), _Both(kept.again, modes[1])


class OnHost:
    """A block's input in page-locked memory; copies go there and back on a stream of their own, beside what computes.

    The backward pass wants the last one first: with each, the one before it starts on its way back.
    """

    _stream: Any = None
    _last: Callable[[], OnHost | None] = staticmethod(lambda: None)

    def __init__(self, tensor: Tensor) -> None:
        kind = type(self)
        kind._stream = stream = kind._stream or torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        self._host = room_on_host(tensor)
        with torch.cuda.stream(stream):
            self._host.copy_(tensor.detach(), non_blocking=True)
        tensor.record_stream(stream)
        self._fetched: Tensor | None = None
        self._device, self._before = tensor.device, kind._last
        kind._last = weakref.ref(self)

    def fetch(self) -> Tensor:
        """Starts the way back, if it has not begun."""
        if self._fetched is None:
            with torch.cuda.stream(self._stream):
                self._fetched = self._host.to(self._device, non_blocking=True)
        return self._fetched

    def back(self) -> Tensor:
        """The input on its device, once the copy has ended there."""
        found, now = self.fetch(), torch.cuda.current_stream()
        now.wait_stream(self._stream)
        found.record_stream(now)
        self._fetched = None
        if (before := self._before()) is not None:
            before.fetch()
        return found


def room_on_host(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)


def to_host(tensor: Tensor) -> Tensor | OnHost:
    """Small tensors and parameters, which exist anyway, stay where they are."""
    return tensor if tensor.nbytes < SMALL or isinstance(tensor, nn.Parameter) else OnHost(tensor)


Stored = Tensor | tuple[BinaryIO, torch.Size, torch.dtype, torch.device]


def _to_file(tensor: Tensor) -> Stored:
    """Small tensors and parameters, which exist anyway, stay where they are."""
    if tensor.nbytes < SMALL or isinstance(tensor, nn.Parameter):
        return tensor
    file = tempfile.TemporaryFile()  # noqa: SIM115 (open until the tensor is wanted again)
    tensor.detach().contiguous().cpu().view(torch.uint8).numpy().tofile(file)
    return file, tensor.shape, tensor.dtype, tensor.device


def _from_file(stored: Stored) -> Tensor:
    if isinstance(stored, Tensor):
        return stored
    file, shape, dtype, device = stored
    file.seek(0)
    return torch.from_numpy(np.fromfile(file, np.uint8)).view(dtype).view(shape).to(device)


def tile_mlps(model: Any, tiles: int) -> None:
    """Makes the MLPs of the language model's blocks take their tokens in tiles.

    Like FSDP2, it gives these modules a class that inherits from theirs, so that parameters keep their names; one for
    all of a kind, or each would be compiled by itself.

    Raises:
        ConfigError: a block has no MLP of a known name.
    """
    kinds: dict[type, type] = {}
    for block in decoder_layers(model):
        found = [getattr(block, name) for name in MLP_NAMES if isinstance(getattr(block, name, None), nn.Module)]
        if not found:
            raise ConfigError(
                f"--mlp-tiles is {tiles}; {type(block).__name__} has no module named {' or '.join(MLP_NAMES)}: "
                "leave the option out"
            )
        for mlp in found:
            kind = type(mlp)
            if kind not in kinds:
                kinds[kind] = type(f"Tiled{kind.__name__}", (kind,), {"forward": _in_tiles(kind.forward, tiles)})
            mlp.__class__ = kinds[kind]


def _in_tiles(forward: Callable[[Any, Tensor], Tensor], tiles: int) -> Callable[[Any, Tensor], Tensor]:
    def tiled(self: Any, hidden: Tensor) -> Tensor:
        parts = hidden.chunk(tiles, dim=-2)
        return torch.cat([checkpoint(partial(forward, self), part, use_reentrant=False) for part in parts], dim=-2)

    return tiled
