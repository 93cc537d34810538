"""Interface of a kind of attention: a function that plans a batch and returns attention of q, k and v."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from jaxtyping import Float
from torch import Tensor

from preshard.schemas.layout import TokenLayout
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.kernels import Kernel, kernel_for
from preshard.trainer.attention.mask import MaskTensors

Exchange = Literal["all", "needed"]
"""Keys that the kind ``gather`` moves."""


class Attend(Protocol):
    """``attend(q, k, v)``: attention of this rank's queries over the whole pack, under its mask."""

    def __call__(
        self,
        q: Float[Tensor, "heads local head_dim"],
        k: Float[Tensor, "kv_heads local head_dim"],
        v: Float[Tensor, "kv_heads local head_dim"],
        /,
        *,
        sinks: Float[Tensor, "heads"] | None = None,
    ) -> Float[Tensor, "heads local head_dim"]:
        """Attention of one layer.

        Args:
            sinks: a logit of each query head that joins the softmax of its rows, and stands for no value. All heads on
                every rank; the gradient of a rank is that of its own rows and heads, to be added over ranks.
        """
        ...


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of ``bind``, of which each kind takes its own."""

    exchange: Exchange
    overlap: bool
    head_stride: int
    softcap: float | None
    kernel: Kernel | None

    def kernel_for(self, mask: MaskTensors) -> Kernel:
        """The kernel that was given, or the one for the mask's device."""
        return self.kernel or kernel_for(mask.device.type, self.softcap)


class Binder(Protocol):
    """The function ``bind_attention`` of a module that ``BINDERS`` names."""

    def __call__(self, layout: TokenLayout, mask: MaskTensors, cp: ContextParallel, options: Options) -> Attend: ...
