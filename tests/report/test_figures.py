"""The figures of the report from rows of loads: means, floors, and which layout the cost model prefers."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from packer_service.report.figures import BalanceFigures
from schemas.tables import BALANCE

DEGREE, SEQ_LEN = 2, 8


def loads(scheme: str | None, **kinds: list[int]) -> list[dict[str, Any]]:
    """Rows of pack 0: the load of each rank, kind by kind."""
    return [
        {"pack_id": 0, "kind": kind, "scheme": scheme, "degree": DEGREE, "rank": rank, "load": load}
        for kind, of_ranks in kinds.items()
        for rank, load in enumerate(of_ranks)
    ]


def layout(scheme: str, tiles: list[int], ring_step: list[int], keys_fetched: list[int]) -> list[dict[str, Any]]:
    return loads(scheme, attention=[1, 3], tiles=tiles, ring_step=ring_step, keys_fetched=keys_fetched)


def figures_of(rows: list[dict[str, Any]], key_weight: float) -> dict[str, Any]:
    figures = BalanceFigures(seq_len=SEQ_LEN, tiles={0: 4}, key_weight=key_weight)
    figures.add(pa.Table.from_pylist(rows, schema=BALANCE))
    return figures.as_json()


FAR = layout("zigzag", tiles=[1, 1], ring_step=[1, 0], keys_fetched=[0, 4])
NEAR = layout("contiguous", tiles=[2, 3], ring_step=[2, 0], keys_fetched=[0, 0])


@pytest.mark.parametrize(("key_weight", "cost", "preferred"), [(0.0, 2.0, "zigzag"), (1.0, 3.0, "contiguous")])
def test_the_dearer_the_keys_the_fewer_are_moved(key_weight: float, cost: float, preferred: str) -> None:
    """Fails when the weight is left out, or when the ring is charged only for the keys that are needed.

    The near layout costs 2 as a ring and 3 as a gather. With keys as dear as tiles its ring moves a slice of 4 for
    nothing, and 3 is the less.
    """
    found = figures_of(NEAR + FAR, key_weight)
    assert found["balance"]["contiguous"]["2"]["cost"] == cost
    assert found["preferred"] == {"2": {preferred: 1}}


def test_of_two_equal_layouts_the_first_by_the_formats_order_is_preferred() -> None:
    """Fails when the preference depends on the order of the rows."""
    twin = [{**row, "scheme": "balanced_ring"} for row in NEAR]
    assert figures_of(twin + NEAR, 1.0)["preferred"] == {"2": {"contiguous": 1}}


def test_paths_are_multiples_of_the_floor_and_imbalance_is_of_the_mean() -> None:
    """Fails when a path is divided by all tiles and not by a rank's share, or a load by the largest one."""
    row = figures_of(NEAR, 1.0)["balance"]["contiguous"]["2"]
    assert (row["gather"], row["ring"], row["traffic"], row["imbalance"]) == (1.5, 1.0, 0.0, 1.5)
    assert (row["rank_attention"], row["rank_tiles"]) == ([1.0, 3.0], [2.0, 3.0])


def test_a_pack_without_any_load_is_no_imbalance() -> None:
    """Fails on a division by no load: a pack of text has no image to share."""
    found = figures_of([*NEAR, *loads(None, images=[0, 0], pooled_tokens=[0, 0])], 1.0)["images"]["2"]
    assert (found["imbalance"], found["pooled_imbalance"]) == (1.0, 1.0)
