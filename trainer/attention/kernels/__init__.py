# ruff: noqa: N803 (shape suffixes)
"""Attention of one device: some queries against some keys, under the mask, computing only tiles with an allowed pair.

Shapes: H query heads, K key heads, Q queries, T keys, D head_dim. Query head h reads key head ``h // (H / K)``, and
scores are scaled by ``D ** -0.5``.
"""

from __future__ import annotations

from typing import Any, Protocol

from jaxtyping import Float
from torch import Tensor

from schemas.errors import ConfigError
from trainer.attention.mask import MaskedTokens


class Prepared(Protocol):
    """What a kernel works out once a batch, for all layers, about some queries and keys."""

    @property
    def empty(self) -> bool:
        """No query sees any key."""
        ...


class Kernel(Protocol):
    """A way to compute attention. ``prepared`` is what its own ``prepare`` made, and never ``empty``."""

    def prepare(self, queries: MaskedTokens, keys: MaskedTokens) -> Prepared:
        """What can be known of these queries and keys before their values."""
        ...

    def forward(
        self, q_HQD: Float[Tensor, "H Q D"], k_KTD: Float[Tensor, "K T D"], v_KTD: Float[Tensor, "K T D"], prepared: Any
    ) -> tuple[Float[Tensor, "H Q D"], Float[Tensor, "H Q"]]:
        """Output in q's dtype, and the log-sum-exp of each row in the accumulation dtype.

        A row that sees none of the keys has output 0 and log-sum-exp -inf.
        """
        ...

    def backward(
        self,
        dout_HQD: Float[Tensor, "H Q D"],
        q_HQD: Float[Tensor, "H Q D"],
        k_KTD: Float[Tensor, "K T D"],
        v_KTD: Float[Tensor, "K T D"],
        out_HQD: Float[Tensor, "H Q D"],
        lse_HQ: Float[Tensor, "H Q"],
        prepared: Any,
    ) -> tuple[Float[Tensor, "H Q D"], Float[Tensor, "K T D"], Float[Tensor, "K T D"]]:
        """Gradients of q, k and v by these keys alone, in the accumulation dtype.

        ``out`` and ``lse`` are of the whole rows, other keys than these among them: with both, the probabilities and
        the gradient of the softmax are known, whatever part of the keys is at hand (Dao 2023, FlashAttention-2).
        """
        ...


def kernel_for(device_type: str) -> Kernel:
    """The kernel of a device.

    Raises:
        ConfigError: there is none for it.
    """
    if device_type == "cpu":
        from trainer.attention.kernels.flash_cpu import FlashCPU

        return FlashCPU()
    if device_type == "cuda":
        from trainer.attention.kernels.flex import Flex

        return Flex()
    raise ConfigError(f"device is {device_type!r}; attention runs on cpu and cuda: take one of these")
