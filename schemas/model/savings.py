"""Ways in which a rank saves memory, by options of ``preshard.train``, the cheapest first.

One ladder for the remedies of the trainer and for what ``preshard advise`` tries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Recompute = Literal["none", "selective", "full"]
RECOMPUTE: tuple[Recompute, ...] = get_args(Recompute)
"""Recomputation in the backward pass, the least first."""

Offload = Literal["none", "host", "disk", "state", "all"]
"""Values of ``--offload``: ``host`` and ``disk`` say where inputs of blocks wait, ``state`` keeps parameters, their
gradients and the optimiser's state in the host's memory, ``all`` does both there."""


def state_on_host(offload: Offload) -> bool:
    """Whether parameters, gradients and the optimiser's state stay on the host."""
    return offload in ("state", "all")


TILES, TILED_LOGITS_MIB = 8, 256
"""Parts of the tokens that MLPs take one by one, and memory for logits, where both are made small."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Saving:
    """Savings of memory of a rank, by the trainer's options.

    Attributes:
        recompute: what the backward pass computes again.
        head_stride: key heads that are gathered at a time; 0 is all.
        offload: what is in the host's memory: ``none``, ``host`` (inputs of blocks), ``state`` or ``all``.
        tiled: whether MLPs take tokens in :data:`TILES`, and logits :data:`TILED_LOGITS_MIB` at a time.
    """

    recompute: Recompute
    head_stride: int = 0
    offload: Offload = "none"
    tiled: bool = False

    @property
    def inputs_wait(self) -> bool:
        return self.offload in ("host", "all")

    @property
    def on_host(self) -> bool:
        return state_on_host(self.offload)


def list_savings(last: Recompute, strides: Sequence[int], away: Sequence[Offload]) -> Iterator[Saving]:
    """Savings beyond recomputation: tiles, fewer key heads at a time, then what leaves the device.

    Args:
        last: what is computed again.
        strides: key heads at a time, the most first; empty where none are gathered.
        away: what may leave the device, the least first.
    """
    everywhere: tuple[Offload, ...] = ("none", *away)
    for offload in everywhere:
        for stride in (0, *strides):
            yield Saving(recompute=last, tiled=True, head_stride=stride, offload=offload)


def halved(heads: int) -> list[int]:
    """Halves of a number of heads, down to one."""
    return [heads >> times for times in range(1, heads.bit_length())]
