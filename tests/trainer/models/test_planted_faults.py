"""Mistakes that the comparison of packs with documents alone must find, each made on purpose."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.process  # packing decodes media in a process of its own

ALL = ("position axis swapped", "features of two units exchanged", "a rank's units encoded twice")
FAULTS = {"qwen3_vl": (*ALL, "deep features one layer late"), "molmo2": ("a mark left out of its group",)}
FAULTS |= {"mistral3-latent": ALL[1:]}
OFTEN = "features of two units exchanged"


@pytest.fixture(scope="module")
def answers(
    request: pytest.FixtureRequest, gloo_pool: Any, made: Callable[[str], tuple[Path, Any]]
) -> dict[str, tuple[float, int]]:
    """The difference from documents alone that each mistake that is run makes, and in how many packs it was made."""
    from packed_models import compare
    from packed_ranks import train_on_packs

    run = {item.callspec.params["name"] for item in request.session.items if item.path == request.path}
    found = {}
    for family, faults in FAULTS.items():
        names = [name for name in faults if name in run]
        if not names:
            continue
        folder, right = made(family)
        cases = [{"kind": "gather", "layout": "zigzag", "fault": name} for name in names]
        ranks = gloo_pool.run(train_on_packs, str(folder), cases, ring=2)
        for name, *of_ranks in zip(names, *ranks, strict=True):
            found[name] = compare(of_ranks, right), of_ranks[-1]["faults"]
    return found


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name != OFTEN)) for names in FAULTS.values() for name in names],
)
def test_a_mistake_is_found(answers: dict[str, tuple[float, int]], name: str) -> None:
    """Fails when the comparison would pass although one rank swaps two axes of positions, exchanges features, counts
    gradients of its encoder twice or adds deep features after the wrong layer, or a mark is outside of its group.
    """
    difference, packs = answers[name]
    assert packs > 0, "no pack gave occasion for the mistake"
    assert difference > 1e-5
