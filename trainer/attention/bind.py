"""From the name of a kind of attention to a function of q, k and v, for all layers of one batch."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, get_args

from jaxtyping import Float
from torch import Tensor

from schemas.errors import ConfigError
from schemas.layout import TokenLayout, slice_positions
from trainer.attention.exchange import Exchange
from trainer.attention.gather import gather_attention, plan_gather
from trainer.attention.hybrid import hybrid_attention
from trainer.attention.kernels import Kernel
from trainer.attention.mask import MaskTensors
from trainer.attention.reference import reference_attention
from trainer.attention.ring import plan_ring, ring_attention
from trainer.attention.ulysses import plan_ulysses, ulysses_attention
from trainer.distributed.mesh import ContextParallel

Kind = Literal["reference", "ulysses", "ring", "gather", "hybrid"]

KINDS: tuple[Kind, ...] = get_args(Kind)
"""Kinds of attention, by the names of ``--attention``."""

Attend = Callable[
    [
        Float[Tensor, "heads local head_dim"],
        Float[Tensor, "kv_heads local head_dim"],
        Float[Tensor, "kv_heads local head_dim"],
    ],
    Float[Tensor, "heads local head_dim"],
]


def bind(
    kind: str,
    layout: TokenLayout,
    mask: MaskTensors,
    cp: ContextParallel,
    *,
    exchange: Exchange = "needed",
    kernel: Kernel | None = None,
) -> Attend:
    """Do one batch's bookkeeping, once for all layers.

    The function that comes back takes this rank's q, k and v in slice order, without a batch dim, and gives the
    attention over the whole pack in q's shape. It is differentiable, and collective: all ranks of ``cp`` call it
    equally often, forward and backward.

    Args:
        kind: one of ``KINDS``.
        layout: of ``cp.ring_degree`` ring ranks.
        mask: the whole pack's, on the device of q, k and v.
        cp: this rank's place.
        exchange: what the kind ``gather`` moves, ``needed`` keys or ``all``.
        kernel: chosen by the mask's device when not given.

    Raises:
        ConfigError: an unknown kind, ``reference`` on several ranks, or a layout of another degree than the mesh.
        LayoutError: ``layout.needs`` is not of the mask's length in blocks of ``layout.block_size`` tokens.
    """
    check_kind(kind, cp.cp_size)
    if layout.ring_degree != cp.ring_degree:
        raise ConfigError(
            f"layout {layout.name} is of ring_degree {layout.ring_degree}; the mesh has {cp.ring_degree}: "
            f"take the layout {layout.scheme} of ring_degree {cp.ring_degree}"
        )
    if kind == "reference":
        return partial(reference_attention, mask=mask, positions=slice_positions(layout.runs, 0))
    if kind == "ulysses":
        return partial(ulysses_attention, plan=plan_ulysses(layout, mask, cp, kernel=kernel))
    if kind == "gather":
        plan = plan_gather(layout, mask, cp, exchange=exchange, kernel=kernel)
        return partial(gather_attention, plan=plan)
    ring = plan_ring(layout, mask, cp, kernel=kernel)
    return partial(ring_attention if kind == "ring" else hybrid_attention, plan=ring)


def check_kind(kind: str, cp_size: int) -> None:
    """Raises ConfigError: the kind is none of ``KINDS``, or ``reference`` on several ranks."""
    if kind not in KINDS:
        raise ConfigError(f"attention is {kind!r}; it is one of {', '.join(KINDS)}")
    if kind == "reference" and cp_size > 1:
        raise ConfigError(
            f"attention is 'reference' on {cp_size} context-parallel ranks; it runs on 1: "
            f"take another of {', '.join(KINDS)}, or one rank"
        )


def check_heads(kind: str, num_heads: int, num_kv_heads: int, *, ulysses_degree: int, ring_degree: int) -> None:
    """Whether the heads of a model can be dealt as a kind of attention does.

    Key heads need not divide among ranks: they are copied as often as that takes.

    Raises:
        ConfigError: they cannot, or the kind cannot run on these degrees; says what would do.
    """
    check_kind(kind, ulysses_degree * ring_degree)
    if num_kv_heads < 1 or num_heads % num_kv_heads:
        fits = [n for n in range(1, num_heads + 1) if num_heads % n == 0]
        raise ConfigError(f"num_kv_heads is {num_kv_heads}; it must divide num_heads {num_heads}: take one of {fits}")
    degree = ulysses_degree * ring_degree if kind == "ulysses" else ulysses_degree
    if num_heads % degree:
        said = "ulysses_degree * ring_degree" if kind == "ulysses" else "ulysses_degree"
        fits = [n for n in range(1, num_heads + 1) if num_heads % n == 0]
        other = ", or attention ring, gather or hybrid, which deal heads over ulysses_degree alone" * (
            kind == "ulysses"
        )
        raise ConfigError(
            f"attention {kind} deals num_heads {num_heads} over {said} = {degree} ranks, which does not divide: "
            f"take a degree of {fits}, heads in a multiple of {degree}{other}"
        )
