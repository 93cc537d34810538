"""Which token each pooled row fills, from which the exchange of features is planned."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from preshard.schemas.errors import PoolingInvalid
from preshard.schemas.sequence import PackedSequence
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.split import pool_positions


def _sequence(pool_ids: list[int]) -> PackedSequence:
    zeros = np.zeros(len(pool_ids), np.int32)
    arrays = {f.name: zeros for f in fields(PackedSequence)}
    return PackedSequence(**{**arrays, "pool_ids": np.array(pool_ids, np.int32)})


def test_every_row_has_its_token(packed: Path, whole: list[Any]) -> None:
    """Fails when rows and tokens are swapped, or a batch knows only the tokens of its own rows."""
    for batch in PackedDataset(packed, ulysses_degree=2, ring_degree=2, cp_rank=2, layout="balanced_ring"):
        pool_ids = whole[batch.pack_id].arrays["pool_ids"]
        assert pool_ids[batch.pool_positions].tolist() == list(range(pool_ids.max() + 1))


def test_rows_in_another_order_are_accepted() -> None:
    """Fails when the reader demands ascending rows, which is a rule of the verifier on which reading does not rest."""
    assert pool_positions(_sequence([-1, 2, -1, 0, 1]), 3, "here").tolist() == [3, 4, 1]
    assert pool_positions(_sequence([-1, -1]), 0, "here").tolist() == []


@pytest.mark.parametrize("pool_ids", [[0, 0, 1], [0, 2, -1], [0, -1, -1], [0, 1, 2], [-2, 0, 1]])
def test_a_row_without_a_token_or_with_two_stops_the_reader(pool_ids: list[int]) -> None:
    """Fails when ranks would wait for a feature that no rank sends, or send one that no rank takes."""
    with pytest.raises(PoolingInvalid, match="each of 2 pooled rows once"):
        pool_positions(_sequence(pool_ids), 2, "here")
