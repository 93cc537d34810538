"""Counts what a step does on a device, tensor by tensor, while nothing is computed.

Tensors on CUDA are torch's fake tensors, and so are parameters and the optimiser's state where they stay on the host.
Other tensors on the CPU are real: the host's part of a step runs as it does beside a GPU. torch's own
``FSDPMemTracker`` sees no copies and no waits, and refuses a second step and gradients that are added up.
"""

from __future__ import annotations

import math
import sys
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

PARTS = (
    "parameters", "gradients", "optimizer", "gathered", "activations", "encoder", "attention", "exchange", "logits",
    "inputs", "backward",
)  # fmt: skip
"""Uses of memory: this rank's shards, their gradients and the optimiser's state; parameters that are whole for a while,
and sums of gradients on their way; what layers keep or are working on, of the decoder and of the encoder; what
attention's kernel makes; its keys, heads and their gradients on the way; logits; what the step reads; what else the
backward pass makes, gradients of activations and of whole parameters."""

ROUNDED = 512
"""CUDA's allocator gives multiples of this, in bytes."""

WAITING = frozenset(
    {"_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "is_nonzero",
     "equal"}
)  # fmt: skip
"""Operators whose result's value or size the host must know before it can go on."""

PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "addmm_", "_grouped_mm", "convolution", "convolution_backward"})
ATTENTION = frozenset({"flex", "flex_backward", "_varlen_attn", "_varlen_attn_backward"})
NO_KERNEL = frozenset(
    {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "resize_", "set_", "lift_fresh",
     "_unsafe_view", "_reshape_alias", "set_data"}
)  # fmt: skip
"""Operators that only make room, besides views."""

_PLACES = (
    ("/fsdp/_fully_shard/", "gathered"),
    ("/trainer/models/loss.py", "logits"),
    ("/trainer/attention/mask.py", "inputs"),
    ("/trainer/attention/kernels/", "attention"),
    ("/trainer/extra/dry_run/device.py", "attention"),
    ("/trainer/attention/", "exchange"),
    ("/trainer/data/", "inputs"),
    ("/trainer/families/pictures.py", "inputs"),
    ("/torch/optim/", "optimizer"),
)
"""Files in which memory is asked for, the first that fits, and the part."""

_ON_HOST = "make_room_on_host"
"""The function that gives parameters memory on the host."""

_FUNCTIONS = {"foreach_reduce": "gradients", "allocate": None, "_encode": "encoder", "_vision_inputs": "inputs"}
"""Functions that decide before their file does; None leaves it to the caller."""

_OURS = ("/trainer/", "/transformers/")
_NOT_OURS = ("/trainer/extra/dry_run/",)


class _FakeMode(FakeTensorMode):
    """Copies small tensors to the device without a device, though one seems to be available."""

    avoid_device_init = True


class Ledger(TorchDispatchMode):
    """Record of what happened inside.

    Attributes:
        phase: which part of the step runs; set by :meth:`during`.
        live, by_part: bytes on the device now, and by part.
        peak, at_peak: the most bytes at once since :meth:`restart`, and their parts.
        peaks: the most bytes of each phase.
        host: bytes on the host that are page-locked, or of parameters and the optimiser's state; and the most of them.
        waits, blocking, pageable: places where the host waits for the device, waits for a copy to it, and copies from
            memory that is not page-locked; how often each.
        copied: bytes that travel between host and device, by phase and direction, ``to host`` or ``to device``.
        collectives: calls and bytes of each kind of collective, by phase.
        kernels: calls of operators that run on the device, by phase and class.
        moved: bytes that they read and write.
        flops: of products and attention, where torch knows a formula.
    """

    def __init__(self) -> None:
        super().__init__()
        self.phase = "parameters"
        self.fake = _FakeMode(allow_non_fake_inputs=True)
        self._sizes: dict[int, tuple[int, str]] = {}
        self._code: dict[CodeType, str | None] = {}
        self.live, self.by_part = 0, Counter[str]()
        self.host, self.most_host = 0, 0
        self.restart()

    def restart(self) -> None:
        """Forgets all but what exists now."""
        self.peak, self.at_peak = self.live, Counter(self.by_part)
        self.peaks: dict[str, int] = {}
        self.waits, self.blocking, self.pageable = Counter[str](), Counter[str](), Counter[str]()
        self.copied = Counter[tuple[str, str]]()
        self.collectives: dict[tuple[str, str], list[int]] = {}
        self.kernels, self.moved, self.flops = Counter[tuple[str, str]](), Counter[tuple[str, str]](), Counter[str]()

    @contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Names what happens inside."""
        before, self.phase = self.phase, phase
        self.peaks[phase] = max(self.peaks.get(phase, 0), self.live)
        try:
            yield
        finally:
            self.phase = before

    def wait(self, name: str) -> None:
        """Counts that the host waits for the device."""
        self.waits[f"{name} in {_place()}"] += 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented
        named = dict(kwargs or {})
        if func.namespace == "prim":  # questions to a tensor, such as its device
            with self.fake:
                return func(*args, **named)
        given = [leaf for leaf in tree_leaves((args, named)) if isinstance(leaf, Tensor)]
        device = named.get("device")
        locked = bool(named.pop("pin_memory", False))
        on_device = device is not None and torch.device(device).type == "cuda"
        locked |= self.phase == "parameters" and device is not None and not on_device and _is_called_by(_ON_HOST)
        if not (on_device or locked or any(isinstance(tensor, FakeTensor) for tensor in given)):
            return func(*args, **named)
        name = func.overloadpacket.__name__
        if name == "_local_scalar_dense":
            self.wait("item")
            return 1.0 if args[0].is_floating_point() else True if args[0].dtype == torch.bool else 1
        self._note_waits(name, args)
        self._note_copy(name, args, named)
        with self.fake:
            out = func(*args, **named)
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, FakeTensor)]
        for tensor in made:
            self._track(tensor)
        self._note_kernel(func, name, args, named, given, made, out)
        return out

    def note_fused(self, moved: int) -> None:
        """Counts a kernel that was not run as an operator."""
        self.kernels[self.phase, "other"] += 1
        self.moved[self.phase, "other"] += moved

    def _note_waits(self, name: str, args: Any) -> None:
        if name in WAITING:
            self.wait(name)
        if name in ("index", "index_put", "index_put_"):
            masks = (each for each in args[1] if each is not None and each.dtype in (torch.bool, torch.uint8))
            if any(mask.is_cuda for mask in masks):
                self.wait("a mask as an index")

    def _note_copy(self, name: str, args: Any, named: dict[str, Any]) -> None:
        if name not in ("_to_copy", "copy_", "_copy_from"):
            return
        source = args[1] if name == "copy_" else args[0]
        target = torch.device(named.get("device") or source.device) if name == "_to_copy" else args[0].device
        waits_not = named.get("non_blocking", args[2] if name == "copy_" and len(args) > 2 else False)
        if source.device.type != target.type:
            self.copied[self.phase, "to host" if target.type == "cpu" else "to device"] += source.nbytes
        if source.device.type == "cuda" and target.type == "cpu":
            if not waits_not:
                self.wait("copy to the host")
        elif source.device.type == "cpu" and target.type == "cuda" and not isinstance(source, FakeTensor):
            place = _place()
            if not waits_not:
                self.blocking[place] += 1
            if not source.is_pinned():
                self.pageable[place] += 1

    def _track(self, tensor: FakeTensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:
            return
        part = "host" if tensor.device.type == "cpu" else self._part()
        self._sizes[key] = 0, part
        self.resized(storage)
        weakref.finalize(storage, self._free, key)

    def resized(self, storage: torch.UntypedStorage) -> None:
        """Counts the present size of a storage that was made inside."""
        if storage._cdata not in self._sizes:
            return
        before, part = self._sizes[storage._cdata]
        now = math.ceil(storage.nbytes() / ROUNDED) * ROUNDED
        self._sizes[storage._cdata] = now, part
        self._add(now - before, part)

    def _free(self, key: int) -> None:
        size, part = self._sizes.pop(key)
        self._add(-size, part)

    def _add(self, size: int, part: str) -> None:
        if part == "host":
            self.host += size
            self.most_host = max(self.most_host, self.host)
            return
        self.live += size
        self.by_part[part] += size
        if self.live > self.peak:
            self.peak, self.at_peak = self.live, Counter(self.by_part)
        self.peaks[self.phase] = max(self.peaks.get(self.phase, 0), self.live)

    def _part(self) -> str:
        """Use of the memory that is asked for now."""
        if self.phase in ("parameters", "optimizer"):
            return self.phase
        frame: FrameType | None = sys._getframe(3)
        while frame is not None:
            code = frame.f_code
            if code not in self._code:
                self._code[code] = _part_of(code)
            found = self._code[code]
            if found is not None:
                return found
            frame = frame.f_back
        return "backward" if self.phase == "backward" else "activations"

    def _note_kernel(
        self, func: Any, name: str, args: Any, named: Any, given: list[Tensor], made: list[FakeTensor], out: Any
    ) -> None:
        if func.namespace in ("c10d", "_c10d_functional"):
            sent = max((sum(x.nbytes for x in tree_leaves(each) if isinstance(x, Tensor)) for each in args), default=0)
            calls = self.collectives.setdefault((self.phase, name.strip("_")), [0, 0])
            calls[0], calls[1] = calls[0] + 1, calls[1] + sent
            return
        returns = func._schema.returns
        is_view = any(each.alias_info is not None and not each.alias_info.is_write for each in returns)
        if is_view or name in NO_KERNEL or not any(tensor.is_cuda for tensor in made or given):
            return
        kind = operator_kind(func)
        self.kernels[self.phase, kind] += 1
        self.moved[self.phase, kind] += sum(_bytes(tensor) for tensor in (*given, *made))
        if kind != "other" and func.overloadpacket in flop_registry:
            self.flops[kind] += flop_registry[func.overloadpacket](*args, **named, out_val=out)


def operator_kind(func: Any) -> str:
    """``attention``, ``products`` or ``other``."""
    name = func.overloadpacket.__name__
    is_attention = name in ATTENTION or name.startswith("_scaled_dot_product")
    return "attention" if is_attention else "products" if name in PRODUCTS else "other"


def _bytes(tensor: Tensor) -> int:
    """Bytes of the elements, but those of an expanded tensor once."""
    return min(tensor.nbytes, tensor.untyped_storage().nbytes())


def _part_of(code: CodeType) -> str | None:
    if code.co_name in _FUNCTIONS:
        return _FUNCTIONS[code.co_name]
    return next((part for place, part in _PLACES if place in code.co_filename), None)


def _is_called_by(function: str) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


def _place() -> str:
    """The innermost line of the trainer's or of ``transformers``' that is being run."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if any(part in name for part in _OURS) and not any(part in name for part in _NOT_OURS):
            start = max(name.rfind(part) for part in _OURS)
            return f"{name[start + 1 :]}:{frame.f_lineno}"
        frame = frame.f_back
    return "torch"
