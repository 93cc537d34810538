"""Bounds of the searches: room for ragged rows, and work that does not grow with the square of a pack."""

from __future__ import annotations

import numpy as np
import pytest

from preshard.packer_service.layout.blocks import WeighedMap, block_map
from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.layout.schemes import SEARCHED
from preshard.packer_service.layout.schemes.balanced_gather import gather_owners
from preshard.schemas.errors import LayoutError
from preshard.schemas.layout import BLOCK_SCHEMES, SCHEMES
from preshard.schemas.schemes import DEFINED, define_runs
from preshard.schemas.sequence import MaskArrays

TILE = 8


def mapped(documents: np.ndarray):
    doc = np.repeat(documents, TILE).astype(np.int32)
    zero = np.zeros_like(doc)
    index = MaskIndex.of(MaskArrays(doc_ids=doc, branch_ids=zero, group_ids=zero - 1))
    return [WeighedMap(block_map(index, TILE, tile=TILE), 1)]


def test_rows_of_very_many_spans_have_room():
    # Fails when the room for the differences of two rows is too small, or grows faster than the rows do.
    blocks = mapped(np.arange(200) % 2)
    assert np.diff(blocks[0].blocks.row_edges).max() == 100
    assert np.bincount(gather_owners(blocks, 2, tries=200)).tolist() == [100, 100]


def test_every_scheme_is_defined_or_searched_for() -> None:
    """Fails when a scheme of the format has no way to be made, or an unknown one is taken for the last."""
    assert {*DEFINED, *SEARCHED} == {*SCHEMES}
    assert tuple(SEARCHED) == BLOCK_SCHEMES
    with pytest.raises(LayoutError, match="'striped' has no definition"):
        define_runs("striped", np.array([0, 8]), 2)
