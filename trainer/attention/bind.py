"""Kinds of attention, by name: each plans a batch, and returns a function of q, k and v for all of its layers."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Literal, Protocol, get_args

from jaxtyping import Float
from torch import Tensor

from preshard.schemas.errors import ConfigError
from preshard.schemas.layout import TokenLayout
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.kernels import Kernel, kernel_for
from preshard.trainer.attention.mask import MaskTensors

Kind = Literal["reference", "ulysses", "ring", "gather", "hybrid"]
"""Names that ``--attention`` takes."""

KINDS: tuple[Kind, ...] = ("ulysses", "ring", "gather")
"""Kinds of attention. ``hybrid`` is what ``ring`` does on a mesh of both axes, and ``reference`` what the others are
compared with, on one rank; both names are taken as well."""

Exchange = Literal["all", "needed"]
"""Keys that the kind ``gather`` moves."""

BINDERS: dict[str, str] = {
    "gather": "gather",
    "hybrid": "ring",
    "reference": "reference",
    "ring": "ring",
    "ulysses": "ulysses",
}
"""The module of this folder that has a kind's ``bind_attention``; it is imported when the kind is asked for."""

assert BINDERS.keys() == set(get_args(Kind))


class Attend(Protocol):
    """``attend(q, k, v)``: attention of this rank's queries over the whole pack, under its mask."""

    def __call__(
        self,
        q: Float[Tensor, "heads local head_dim"],
        k: Float[Tensor, "kv_heads local head_dim"],
        v: Float[Tensor, "kv_heads local value_dim"],
        /,
        *,
        sinks: Float[Tensor, "heads"] | None = None,
        up: Float[Tensor, "latent kv_heads plain_and_value"] | None = None,
    ) -> Float[Tensor, "heads local value_dim"]:
        """Attention of one layer. Values may have another width than keys; scores are scaled by that of keys.

        Args:
            sinks: a logit of each query head that joins the softmax of its rows, and stands for no value. All heads on
                every rank; the gradient of a rank is that of its own rows and heads, to be added over ranks.
            up: what makes keys and values of a token from its latent: of each head the part of keys without a turn,
                then values. ``k`` is then the latents, ``[1, local, latent]``, and ``v`` the turned part of keys that
                all heads share, ``[1, local, turned]``. They travel in the place of what they make wherever they are
                fewer numbers. All heads on every rank; gradients are to be added over ranks, as those of sinks.
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


def bind(
    kind: str,
    layout: TokenLayout,
    mask: MaskTensors,
    cp: ContextParallel,
    *,
    exchange: Exchange = "needed",
    overlap: bool = False,
    head_stride: int = 0,
    softcap: float | None = None,
    kernel: Kernel | None = None,
) -> Attend:
    """Plans the attention of one batch, once for all layers.

    The returned function takes this rank's q, k and v in slice order, without a batch dim, and the layer's sinks if it
    has any, and returns the attention over the whole pack in q's shape and v's width. It is differentiable and
    collective: all ranks of ``cp`` must call it equally often, forward and backward.

    Args:
        kind: one of ``KINDS``.
        layout: of ``cp.ring_degree`` ring ranks.
        mask: of the whole pack, on the device of q, k and v.
        cp: this rank's place in its context-parallel group.
        exchange: which keys the kind ``gather`` moves: only the ``needed`` ones, or ``all``.
        overlap: of the kinds ``ulysses`` and ``gather``: exchange half of the heads, or ``head_stride`` of them, while
            others are computed.
        head_stride: of the kind ``gather``: key heads of a rank whose keys and values are gathered at a time; 0 is all.
        softcap: scores x become ``softcap * tanh(x / softcap)``, before sinks join them; None if they stay as they are.
        kernel: by default the one for the mask's device; one of your own caps scores itself.

    Raises:
        ConfigError: the kind is unknown, is ``reference`` on several ranks, has nothing to overlap or to gather,
            or the layout's degree is not the mesh's.
        LayoutError: ``layout.needs`` does not cover the mask's tokens in blocks of ``layout.block_size``.
    """
    check_kind(kind, cp.cp_size, overlap=overlap, head_stride=head_stride)
    if layout.ring_degree != cp.ring_degree:
        raise ConfigError(
            f"layout {layout.name} has ring_degree {layout.ring_degree}; the mesh has {cp.ring_degree}: "
            f"take the layout {layout.scheme} with ring_degree {cp.ring_degree}"
        )
    options = Options(exchange=exchange, overlap=overlap, head_stride=head_stride, softcap=softcap, kernel=kernel)
    found: Binder = import_module(f"{__package__}.{BINDERS[kind]}").bind_attention
    return found(layout, mask, cp, options)


def check_kind(kind: str, cp_size: int, *, overlap: bool, head_stride: int) -> None:
    """Checks that a kind of attention exists, runs on so many ranks, and has exchanges that can overlap or keys that it
    can gather in turns, where that is asked for.

    Raises:
        ConfigError: it does not or has not; says what would do.
    """
    if kind not in BINDERS:
        raise ConfigError(f"attention is {kind!r}; take one of {', '.join(KINDS)}")
    if kind == "reference" and cp_size > 1:
        raise ConfigError(
            f"attention is 'reference' on {cp_size} context-parallel ranks; it runs on 1: "
            f"take one of {', '.join(KINDS)}, or one rank"
        )
    if overlap and kind not in ("ulysses", "gather"):
        raise ConfigError(f"--overlap needs attention ulysses or gather, not {kind!r}: use one of them, or omit it")
    if head_stride < 0:
        raise ConfigError(f"--head-stride is {head_stride}; give the key heads to gather at a time, or 0 for all")
    if head_stride and kind != "gather":
        raise ConfigError(
            f"--head-stride needs attention gather, not {kind!r}: use attention gather, or omit the option"
        )


def check_heads(
    kind: str,
    num_heads: int,
    num_kv_heads: int,
    *,
    ulysses_degree: int,
    ring_degree: int,
    overlap: bool = False,
    head_stride: int = 0,
) -> None:
    """Checks that a kind of attention can deal a model's heads to the ranks.

    Key heads need not divide among the ranks: each is copied as often as needed.

    Raises:
        ConfigError: the heads do not divide, or the kind does not run on these degrees; says what would work.
    """
    check_kind(kind, ulysses_degree * ring_degree, overlap=overlap, head_stride=head_stride)
    fits = [n for n in range(1, num_heads + 1) if num_heads % n == 0]
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        raise ConfigError(f"num_kv_heads is {num_kv_heads}; it must divide num_heads {num_heads}: take one of {fits}")
    degree = ulysses_degree * ring_degree if kind == "ulysses" else ulysses_degree
    if num_heads % degree:
        axes, other = "ulysses_degree", ""
        if kind == "ulysses":
            axes = "ulysses_degree * ring_degree"
            other = ", or attention ring, gather or hybrid, which deal heads over ulysses_degree alone"
        raise ConfigError(
            f"attention {kind} deals num_heads {num_heads} over {axes} = {degree} ranks, which does not divide: "
            f"take a degree of {fits}, heads in a multiple of {degree}{other}"
        )
    if overlap or head_stride:
        check_turns = import_module(f"{__package__}.{BINDERS[kind]}").check_turns
        degrees = {"ulysses_degree": ulysses_degree, "ring_degree": ring_degree}
        check_turns(num_heads, num_kv_heads, **degrees, overlap=overlap, head_stride=head_stride)
