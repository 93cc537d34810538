# ruff: noqa: N803 (shape suffixes)
"""Attention on one device: some queries against some keys, computing only tiles that hold an allowed pair.

Shapes: H query heads, K key heads, Q queries, T keys, D head_dim of queries and keys, V of values, which may
be another. Query head h reads key head ``h // (H / K)``, and scores are scaled by ``D ** -0.5``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from preshard.schemas.errors import ConfigError
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.tiles import TileList

Gradients = tuple[Float[Tensor, "H Q D"], Float[Tensor, "K T D"], Float[Tensor, "K T V"]]

Inputs = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True, kw_only=True)
class Whole:
    """One call of a kernel, between its forward and its backward. It holds no memory but its output's and ``saved``.

    Attributes:
        out: in q's dtype.
        saved: what ``backward`` needs besides the inputs; for ``save_for_backward``.
        backward: from the gradient of the output, the inputs and ``saved`` to the gradients of q, k and v, in the
            dtype that the kernel gives them: that of the inputs, or the accumulation dtype.
    """

    out: Float[Tensor, "H Q V"]
    saved: tuple[Tensor, ...]
    backward: Callable[[Tensor, Inputs, tuple[Tensor, ...]], Gradients]


class Prepared(Protocol):
    """A kernel's preparations for some queries and keys, once per batch for all layers."""

    @property
    def empty(self) -> bool:
        """No query sees any key."""
        ...


class Kernel(Protocol):
    """A way to compute attention. ``prepared`` was made by the kernel's own ``prepare`` and is never ``empty``."""

    def prepare(self, queries: MaskTensors, keys: MaskTensors, listed: TileList | None = None) -> Prepared:
        """Works out what can be known about these queries and keys before their values are known.

        Args:
            queries, keys: which tokens.
            listed: their tiles, if they have been listed already, in the sizes of the device's kernel.
        """
        ...

    def forward(
        self, q_HQD: Float[Tensor, "H Q D"], k_KTD: Float[Tensor, "K T D"], v_KTV: Float[Tensor, "K T V"], prepared: Any
    ) -> tuple[Float[Tensor, "H Q V"], Float[Tensor, "H Q"]]:
        """Output in q's dtype, and the log-sum-exp of each row in the accumulation dtype.

        A row that sees none of the keys has output 0 and log-sum-exp -inf.
        """
        ...

    def whole(
        self, q_HQD: Float[Tensor, "H Q D"], k_KTD: Float[Tensor, "K T D"], v_KTV: Float[Tensor, "K T V"], prepared: Any
    ) -> Whole:
        """Attention where these are all the keys that the rows see, with the kernel's own backward.

        ``forward`` and ``backward`` are for one part of the keys.
        """
        ...

    def backward(
        self,
        dout_HQV: Float[Tensor, "H Q V"],
        q_HQD: Float[Tensor, "H Q D"],
        k_KTD: Float[Tensor, "K T D"],
        v_KTV: Float[Tensor, "K T V"],
        out_HQV: Float[Tensor, "H Q V"],
        lse_HQ: Float[Tensor, "H Q"],
        prepared: Any,
    ) -> tuple[Float[Tensor, "H Q D"], Float[Tensor, "K T D"], Float[Tensor, "K T V"]]:
        """Gradients of q, k and v by these keys alone, in the accumulation dtype.

        ``out`` and ``lse`` are those of the whole rows, over other keys too. With both, the probabilities and the
        gradient of the softmax can be computed for any part of the keys (Dao 2023, FlashAttention-2).
        """
        ...


KERNELS = {"cpu": ("flash_cpu", "FlashCPU"), "cuda": ("flex", "Flex")}
"""The module of this folder with the kernel for a type of device, and the kernel's class."""


def kernel_for(device_type: str, softcap: float | None = None) -> Kernel:
    """The kernel for a type of device.

    Args:
        device_type: ``cpu`` or ``cuda``.
        softcap: scores x become ``softcap * tanh(x / softcap)`` before the mask; None if they stay as they are.

    Raises:
        ConfigError: there is none for this type.
    """
    if device_type not in KERNELS:
        raise ConfigError(f"device is {device_type!r}; attention runs on {' and '.join(KERNELS)}: take one of these")
    module, name = KERNELS[device_type]
    kernel: Kernel = getattr(import_module(f"{__package__}.{module}"), name)(softcap=softcap)
    return kernel


SMALLEST_CUDA_HEAD = 16
"""Triton multiplies matrices of at least 16 rows and columns."""


def check_kernel(device_type: str, dtype: torch.dtype, head_dim: int) -> None:
    """Checks that the kernel of a type of device computes in a dtype and for a width of heads.

    Raises:
        ConfigError: it does not; says what it computes.
    """
    kernel_for(device_type)
    if device_type != "cuda":
        return
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        name = str(dtype).removeprefix("torch.")
        raise ConfigError(
            f"--dtype is {name}; attention on CUDA does not support it: use float32 or bfloat16, or --device cpu"
        )
    if head_dim < SMALLEST_CUDA_HEAD:
        raise ConfigError(
            f"the model's narrowest head has {head_dim} numbers; attention on CUDA needs {SMALLEST_CUDA_HEAD}: use "
            "another model, or --device cpu"
        )
