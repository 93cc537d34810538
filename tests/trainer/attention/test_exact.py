"""Every kind of attention gives the reference's output and gradients on every mesh."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from preshard.schemas.layout import SCHEMES
from preshard.schemas.mask import dense_mask

CALLS: list[tuple[str, dict[str, Any]]] = [
    ("ring", {}),
    ("gather", {"exchange": "needed"}),
    ("gather", {"exchange": "all"}),
    ("gather", {"head_stride": 1}),
    ("hybrid", {}),
    ("ulysses", {}),
]
MESHES = [(1, 1), (2, 1), (1, 2), (2, 2), (1, 4), (4, 1), (4, 2), (2, 4), (1, 8), (8, 1)]
EXAMPLES = {1: 4, 2: 3, 4: 2, 8: 2}
"""Examples per scheme, by the number of ranks, which share few cores; the first of each scheme is a trivial pack."""
WINDOWS = (None, 5, 3, None)
"""Windows of the examples in turn."""
ALL_SCHEMES = (*SCHEMES, "random")
SOME_SCHEMES: dict[tuple[int, int], tuple[str, ...]] = {
    **dict.fromkeys([(1, 1), (2, 1), (4, 1)], ("contiguous", "random")),
    (4, 2): ("contiguous",),
    (2, 4): ("zigzag", "balanced_gather"),
    (1, 8): ("balanced_ring", "random"),
    (8, 1): ("contiguous",),
}
"""Meshes that do not meet all schemes. With a ring of one, all but the random one deal the same: the pack as it is.
Eight ranks take the same paths as four and longer: each scheme is on some mesh of them.
"""

pytestmark = pytest.mark.process  # starts none with threads, and takes long


def met(case: Any) -> set[str]:
    """Special features of a case."""
    mask, slices = case.mask, case.slices()
    allowed = dense_mask(mask, window=case.window)
    tokens = len(slices[0]) * case.ulysses
    special = {
        "grouped heads": case.kv_heads < case.heads,
        "a window hides keys": bool((allowed != dense_mask(mask)).any()),
        "no window": case.window is None,
        "key heads are copied": case.kv_heads % (case.ulysses * case.ring) > 0,
        "padding": bool((mask.doc_ids < 0).any()),
        "annotations": bool((mask.branch_ids > 0).any()),
        "tokens see later ones": bool(np.triu(allowed, 1).any()),
        "a slice is no multiple of a tile": tokens % 64 > 0,
        "a slice of several tiles": tokens > 128,
        "a rank of padding": any((mask.doc_ids[rows] < 0).all() for rows in slices),
        "a rank sees nothing of another": any(
            not allowed[np.ix_(rows, columns)].any() for rows in slices for columns in slices
        ),
    }
    return {name for name, there in special.items() if there}


ALWAYS = {
    "a window hides keys",
    "no window",
    "grouped heads",
    "padding",
    "annotations",
    "tokens see later ones",
    "a slice is no multiple of a tile",
}
BETWEEN_RANKS = {"a rank sees nothing of another", "key heads are copied"}


def check(cases: Any, attend: Any, expected: Any, assert_same: Any, mesh: tuple[int, int]) -> set[str]:
    """Compares every kind on a mesh with the reference; what was special about the cases."""
    seen: set[str] = set()
    windows = cycle(WINDOWS)
    for scheme in SOME_SCHEMES.get(mesh, ALL_SCHEMES):

        @settings(max_examples=EXAMPLES[mesh[0] * mesh[1]], deadline=None, derandomize=True, database=None)
        @given(cases(scheme, *mesh))
        def check_scheme(case: Any) -> None:
            case = replace(case, window=next(windows))
            seen.update(met(case))
            right = expected(case)
            for ours in attend(case, CALLS):
                assert_same(ours, right)

        check_scheme()
    return seen


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param(mesh, id="x".join(map(str, mesh)), marks=[pytest.mark.slow] * (mesh[0] * mesh[1] == 8))
        for mesh in MESHES
    ],
)
def test_every_kind_is_the_reference(
    mesh: tuple[int, int], cases: Any, attend: Any, expected: Any, assert_same: Any
) -> None:
    """Fails when positions, the order of slices, merging, heads or the way of gradients back are wrong on a mesh."""
    seen = check(cases, attend, expected, assert_same, mesh)
    ranks = mesh[0] * mesh[1]
    wanted = ALWAYS | (BETWEEN_RANKS if ranks > 1 else {"a slice of several tiles"})
    assert seen >= wanted or ranks == 8, wanted - seen


def test_processes_that_send_to_each_other_give_the_same(
    cases: Any, attend_in_processes: Any, expected: Any, assert_same: Any
) -> None:
    """Fails when torch's own collectives take sizes, memory or an order of messages that copies in memory do not."""
    seen = check(cases, attend_in_processes, expected, assert_same, (2, 2))
    assert seen >= ALWAYS | BETWEEN_RANKS
