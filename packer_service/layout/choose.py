"""Which layout a pack should take, by a model of two terms: tiles to compute and keys to move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from packer_service.layout.measures import LayoutMeasures
from schemas.layout import SCHEMES


class LayoutCost(NamedTuple):
    """Cost of a layout, in tiles, run by the attention that suits it better."""

    cost: float
    attention: Literal["ring", "gather"]


def layout_cost(measures: LayoutMeasures, *, key_weight: float) -> LayoutCost:
    """Cost of one attention layer for the slowest rank: tiles on the critical path plus weighed keys to move.

    With ``gather`` a rank fetches what it needs before its kernel runs, and the rank that fetches most counts. With
    ``ring`` every slice passes every rank, needed or not: R - 1 slices. Of two equal costs ``ring`` is taken, which
    holds fewer keys at a time.

    Args:
        measures: the layout's measures.
        key_weight: time to move one token's keys and values over the time to compute one tile. It follows from the
            model and the machine: ``(bytes of a token's keys and values / bandwidth) / (flops of a tile / speed)``.
    """
    degree, held = measures.ring_degree, int(measures.slice_tokens)
    ring = measures.ring_path + key_weight * held * (degree - 1)
    gather = measures.gather_path + key_weight * int(measures.keys_fetched.max())
    return LayoutCost(ring, "ring") if ring <= gather else LayoutCost(gather, "gather")


def preferred_layout(measures: Sequence[LayoutMeasures], *, key_weight: float) -> LayoutMeasures:
    """The layout of least cost among those of one pack and degree; of equal ones, the first by ``SCHEMES``.

    Raises:
        ValueError: no measures.
    """
    return min(measures, key=lambda m: (layout_cost(m, key_weight=key_weight).cost, SCHEMES.index(m.scheme)))
