"""The layout and degrees that a question is about: those asked for if the dataset has them, or else defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from preshard.packer_service.http.models.balance import Chosen
from preshard.packer_service.http.problems import not_legal
from preshard.schemas.config import PackConfig

T = TypeVar("T", int, str)

_PREFERRED = "balanced_ring"


def choose(config: PackConfig, layout: str | None, ring: int | None, cp: int | None) -> Chosen:
    """The choice for a dataset. A CP size alone also sets the ring degree, and the other way round.

    Raises:
        ProblemError: 422 the dataset has no such layout, ring degree or CP size; the detail lists what it has.
    """
    usual = _PREFERRED if _PREFERRED in config.layouts else config.layouts[-1]
    return Chosen(
        layout=check("layout", layout, config.layouts) or usual,
        ring_degree=check("ring", ring, config.ring_degrees) or _like(cp, config.ring_degrees),
        cp_size=check("cp", cp, config.cp_sizes) or _like(ring, config.cp_sizes),
    )


def check(name: str, asked: T | None, there: Sequence[T]) -> T | None:
    """What was asked for, if the dataset has it.

    Raises:
        ProblemError: 422 it does not; the detail lists what it has.
    """
    if asked is not None and asked not in there:
        raise not_legal(f"{name}: {asked!r:.80} is not in this dataset; there is {', '.join(map(str, there))}")
    return asked


def _like(other: int | None, there: Sequence[int]) -> int:
    return other if other in there and other is not None else max(there)
