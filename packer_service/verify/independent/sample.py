"""Which packs are checked by the independent way."""

from __future__ import annotations

from collections.abc import Container

MOST_PACKS = 8
"""Packs of a dataset that are checked independently unless all are asked for."""


def chosen_packs(n_packs: int, *, thorough: bool) -> Container[int]:
    """All packs, or at most :data:`MOST_PACKS` spread evenly, the first and the last among them."""
    if thorough or n_packs <= MOST_PACKS:
        return range(n_packs)
    return frozenset(number * (n_packs - 1) // (MOST_PACKS - 1) for number in range(MOST_PACKS))
