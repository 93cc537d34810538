"""From the name of a kind of attention to a function of q, k and v that serves all layers of one batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, get_args

from jaxtyping import Float
from torch import Tensor

from preshard.schemas.errors import ConfigError
from preshard.schemas.layout import TokenLayout, slice_positions
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.gather import (
    Exchange,
    gather_attention,
    plan_gather,
    plan_overlap,
    plan_ulysses,
    ulysses_attention,
)
from preshard.trainer.attention.heads import PIECES, list_pieces, overlapped_attention, repeated_kv_heads
from preshard.trainer.attention.kernels import Kernel, kernel_for
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.reference import reference_attention
from preshard.trainer.attention.ring import plan_ring, ring_attention

Kind = Literal["reference", "ulysses", "ring", "gather", "hybrid"]

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Kinds of attention, by the names of ``--attention``. ``hybrid`` is the name of ``ring`` on a mesh of both axes."""


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
    has any, and returns the attention over the whole pack in q's shape. It is differentiable and collective: all ranks
    of ``cp`` must call it equally often, forward and backward.

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
    check_kind(kind, cp.cp_size)
    check_overlap(kind, overlap=overlap)
    check_head_stride(kind, head_stride)
    if layout.ring_degree != cp.ring_degree:
        raise ConfigError(
            f"layout {layout.name} has ring_degree {layout.ring_degree}; the mesh has {cp.ring_degree}: "
            f"take the layout {layout.scheme} with ring_degree {cp.ring_degree}"
        )
    options = Options(exchange=exchange, overlap=overlap, head_stride=head_stride, softcap=softcap, kernel=kernel)
    return BINDERS[kind](layout, mask, cp, options)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Those of :func:`bind`, of which each kind takes its own."""

    exchange: Exchange
    overlap: bool
    head_stride: int
    softcap: float | None
    kernel: Kernel | None

    def kernel_for(self, mask: MaskTensors) -> Kernel:
        """The kernel that was given, or the one for the mask's device."""
        return self.kernel or kernel_for(mask.device.type, self.softcap)


def _bind_reference(layout: TokenLayout, mask: MaskTensors, _cp: ContextParallel, options: Options) -> Attend:
    positions = slice_positions(layout.runs, 0)
    return partial(reference_attention, mask=mask, positions=positions, softcap=options.softcap)


def _bind_ulysses(layout: TokenLayout, mask: MaskTensors, cp: ContextParallel, options: Options) -> Attend:
    whole = plan_ulysses(layout, mask, cp, kernel=options.kernel_for(mask))
    pieces = plan_overlap(whole) if options.overlap else None
    return partial(overlapped_attention, plan=pieces) if pieces else partial(ulysses_attention, plan=whole)


def _bind_ring(layout: TokenLayout, mask: MaskTensors, cp: ContextParallel, options: Options) -> Attend:
    return partial(ring_attention, plan=plan_ring(layout, mask, cp, kernel=options.kernel_for(mask)))


def _bind_gather(layout: TokenLayout, mask: MaskTensors, cp: ContextParallel, options: Options) -> Attend:
    how: Any = {"exchange": options.exchange, "head_stride": options.head_stride, "overlap": options.overlap}
    return partial(gather_attention, plan=plan_gather(layout, mask, cp, kernel=options.kernel_for(mask), **how))


BINDERS: dict[str, Callable[..., Attend]] = {
    "reference": _bind_reference,
    "ulysses": _bind_ulysses,
    "ring": _bind_ring,
    "gather": _bind_gather,
    "hybrid": _bind_ring,
}
"""What plans each kind of attention."""

assert set(BINDERS) == set(KINDS)


def check_kind(kind: str, cp_size: int) -> None:
    """Checks that a kind of attention exists and can run on so many ranks.

    Raises:
        ConfigError: the kind is not one of ``KINDS``, or is ``reference`` on several ranks.
    """
    if kind not in KINDS:
        raise ConfigError(f"attention is {kind!r}; take one of {', '.join(KINDS)}")
    if kind == "reference" and cp_size > 1:
        raise ConfigError(
            f"attention is 'reference' on {cp_size} context-parallel ranks; it runs on 1: "
            f"take another of {', '.join(KINDS)}, or one rank"
        )


def check_overlap(kind: str, *, overlap: bool) -> None:
    """Checks that a kind of attention has exchanges that overlap with its kernel, if they are asked to.

    Raises:
        ConfigError: it has none.
    """
    if overlap and kind not in ("ulysses", "gather"):
        raise ConfigError(f"--overlap needs attention ulysses or gather, not {kind!r}: use one of them, or omit it")


def check_head_stride(kind: str, head_stride: int) -> None:
    """Checks that a kind of attention gathers keys, which it can take in turns.

    Raises:
        ConfigError: it does not, or the number is negative.
    """
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
    check_kind(kind, ulysses_degree * ring_degree)
    check_overlap(kind, overlap=overlap)
    check_head_stride(kind, head_stride)
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
    if overlap and kind == "ulysses" and degree > 1:
        list_pieces(num_heads, num_kv_heads, degree)
    own = repeated_kv_heads(num_kv_heads, degree) // degree
    if overlap and kind == "gather" and ring_degree == 1 < degree:
        raise ConfigError("--overlap with attention gather needs keys to gather, and ring is 1: use attention ulysses")
    if overlap and kind == "gather" and ring_degree > 1 and own < max(PIECES, head_stride + 1):
        raise ConfigError(
            f"--overlap gathers some key heads while others are attended to; {num_kv_heads} key heads over "
            f"ulysses_degree {degree} are {own} on each rank, and --head-stride is {head_stride}: lower "
            "ulysses_degree or --head-stride, or omit --overlap"
        )
    if head_stride > own:
        raise ConfigError(
            f"--head-stride is {head_stride}; {num_kv_heads} key heads over ulysses_degree {degree} are {own} on each "
            f"rank: take at most {own}, or omit the option"
        )
