"""A CUDA device that is not there: what is asked of ``torch.cuda``, answered without one.

Fake tensors of torch may lie on CUDA on a machine without it, and autograd runs on them. What is left are questions to
the device's own interface, and two kernels whose choice or compilation asks a real device: FlexAttention, which would
be compiled, and the attention of encoders, of which torch without CUDA takes the one that makes a matrix of scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, library
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import set_multithreading_enabled
from torch.utils.weak import WeakIdKeyDictionary

from preshard.trainer.attention.kernels import flex
from preshard.trainer.extra.dry_run.guard import cuda_in_autograd

CAPABILITY = (9, 0)
"""Compute capability of an H100, whatever device is asked for: libraries choose their kernels by it."""


class _Stream:
    """Work is counted, not done, so its order has no meaning."""

    device, device_type, device_index, stream_id = torch.device("cuda", 0), 1, 0, 0

    def __init__(self, *_args: Any, **_named: Any) -> None:
        pass

    def record_event(self, event: Any = None) -> Any:
        return _Event() if event is None else event

    def query(self) -> bool:
        return True

    def _nothing(self, *_args: Any, **_named: Any) -> None:
        pass

    wait_event = wait_stream = _nothing


class _Event(_Stream):
    def record(self, *_args: Any) -> _Event:
        return self

    def wait(self, *_args: Any) -> None:
        pass

    def elapsed_time(self, *_args: Any) -> float:
        return 0.0


@contextmanager
def fake_cuda(memory: int, waits: Callable[[str], None]) -> Iterator[None]:
    """Fakes one CUDA device in this process; a dispatch mode must give its tensors (see ``Ledger``).

    Backward passes run in the calling thread.

    Args:
        memory: bytes of the device.
        waits: called with the name of each way in which the host waits for the device besides a tensor's value.
    """
    properties = SimpleNamespace(total_memory=memory, name="fake", major=CAPABILITY[0], minor=CAPABILITY[1])
    stream = _Stream()
    pinned: WeakIdKeyDictionary = WeakIdKeyDictionary()

    def waiting(name: str) -> Callable[..., None]:
        return lambda *_args, **_named: waits(name)

    def pin(tensor: Tensor, *_args: Any) -> Tensor:
        pinned[tensor.untyped_storage()] = True
        return tensor

    def listed(tensor: FakeTensor) -> Any:
        waits("tolist")
        return torch.ones(tensor.shape, dtype=tensor.dtype, device="cpu").numpy().tolist()

    answers: dict[str, Any] = {
        **{"_lazy_init": lambda: None, "is_available": lambda: True, "device_count": lambda: 1},
        **{"current_device": lambda: 0, "set_device": lambda *_: None, "is_bf16_supported": lambda *_: True},
        **{"get_device_properties": lambda *_: properties, "get_device_capability": lambda *_: CAPABILITY},
        **{"Stream": _Stream, "Event": _Event, "stream": lambda *_: nullcontext()},
        **{"current_stream": lambda *_: stream, "default_stream": lambda *_: stream},
        **{"synchronize": waiting("cuda.synchronize"), "is_current_stream_capturing": lambda: False},
        **{"mem_get_info": lambda *_: (memory, memory)},
        **{"get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8), "set_rng_state": lambda *_: None},
    }
    replaced = [
        *((torch.cuda, name, value) for name, value in answers.items()),
        (torch.accelerator, "is_available", lambda: True),
        (torch.accelerator, "current_accelerator", lambda *_, **__: torch.device("cuda")),
        (_Stream, "synchronize", waiting("stream.synchronize")),
        (Tensor, "pin_memory", pin),
        (Tensor, "is_pinned", lambda tensor, *_: tensor.untyped_storage() in pinned),
        (Tensor, "record_stream", lambda *_: None),
        (FakeTensor, "tolist", listed),
        (fake_tensor, "init_gpu_context", lambda *_: None),
        (torch.nn.functional, "scaled_dot_product_attention", _fused(torch.nn.functional.scaled_dot_product_attention)),
        (flex, "compiled_attention", lambda *_: _flex_attention),
    ]
    lifts = torch._C._only_lift_cpu_tensors()
    with ExitStack() as stack, set_multithreading_enabled(False), cuda_in_autograd():
        torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor(..., device="cuda") copies by an operator
        stack.callback(torch._C._set_only_lift_cpu_tensors, lifts)
        for target, name, value in replaced:
            stack.enter_context(patched(target, name, value))
        yield


_ABSENT = object()


@contextmanager
def patched(target: Any, name: str, value: Any) -> Iterator[None]:
    before = vars(target).get(name, _ABSENT)
    setattr(target, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(target, name)
        else:
            setattr(target, name, before)


def _fused(plain: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Stand-in for torch's attention on CUDA, without a mask and with one."""
    aten: Any = torch.ops.aten

    def attention(
        query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, dropout_p: float = 0.0, *args: Any,
        **named: Any,
    ) -> Any:  # fmt: skip
        if not query.is_cuda:
            return plain(query, key, value, attn_mask, dropout_p, *args, **named)
        if attn_mask is None:
            return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p)[0]
        bias = attn_mask if attn_mask.dtype != torch.bool else attn_mask.to(query.dtype)
        bias = bias.expand(*query.shape[:-1], key.shape[-2])
        return aten._scaled_dot_product_efficient_attention(query, key, value, bias, compute_log_sumexp=True)[0]

    return attention


def _flex_attention(q: Tensor, k: Tensor, v: Tensor, *, return_aux: Any = None, **_named: Any) -> Any:
    out, lse = flex_kernel(q, k, v)
    return out if return_aux is None else (out, SimpleNamespace(lse=lse))


@library.custom_op("preshard::flex", mutates_args=())
def flex_kernel(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Returns tensors in the shape of the results of FlexAttention's forward kernel, on fake tensors alone."""
    raise NotImplementedError


@flex_kernel.register_fake
def _(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return q.new_empty(*q.shape[:-1], v.shape[-1]), q.new_empty(q.shape[:-1], dtype=torch.float32)


@library.custom_op("preshard::flex_backward", mutates_args=())
def flex_backward_kernel(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The same of its backward."""
    raise NotImplementedError


@flex_backward_kernel.register_fake
def _(
    dout: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor  # noqa: ARG001
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


def _backward(ctx: Any, dout: Tensor, _dlse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    found: tuple[Tensor, Tensor, Tensor] = flex_backward_kernel(dout, *ctx.saved_tensors)
    return found


def _setup(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, *output)


flex_kernel.register_autograd(_backward, setup_context=_setup)
