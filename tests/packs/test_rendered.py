"""Positions of documents with annotations and grids, and what a cut says of its last image or video."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from made_units import made_units

from preshard.packer_service.packs.rendered import RenderedDocument, cut, document_positions, groups_of_units


def test_each_annotation_goes_on_behind_the_shared_prefix_on_three_axes() -> None:
    """Fails when an annotation counts on from the one before it, or one that was cut away is not passed over.

    The prefix is a token and an image of two rows, whose larger side is 2; the first annotation is missing.
    """
    branch_ids = np.array([0, 0, 0, 2, 2, 3], np.int32)
    unit_ids = np.array([-1, 0, 0, -1, -1, -1], np.int32)
    units = replace(made_units([(1, 3)]), grids=np.array([[1, 1, 2]]))
    positions = document_positions(branch_ids, unit_ids, units, axes=3)
    assert positions.tolist() == [[0, 1, 1, 3, 4, 3], [0, 1, 1, 3, 4, 3], [0, 1, 2, 3, 4, 3]]


def _frames(media: list[int], medium_cut: bool) -> RenderedDocument:
    """A token for each frame, and the image or video that each belongs to."""
    n = len(media)
    unit_ids, none = np.arange(n, dtype=np.int32), np.zeros(n, np.int32)
    return RenderedDocument(
        tokens=none,
        labels=none - 100,
        loss_weights=np.zeros(n, np.float32),
        position_ids=unit_ids[None],
        branch_ids=none,
        group_ids=groups_of_units(unit_ids, "within_image"),
        unit_ids=unit_ids,
        units=replace(made_units([(i, i + 1) for i in range(n)]), media=np.array(media)),
        n_shared=0,
        n_branches=0,
        medium_cut=medium_cut,
    )


@pytest.mark.parametrize(
    ("end", "medium_cut", "expected"),
    [(2, False, True), (3, False, True), (4, False, False), (5, True, False), (6, True, True), (6, False, False)],
)
def test_a_cut_says_whether_its_last_video_goes_on(end: int, medium_cut: bool, expected: bool) -> None:
    """Fails when a cut behind a video's last frame counts as one inside it, or the other way round."""
    document = _frames([0, 0, 0, 0, 1, 2], medium_cut)
    assert cut(document, 0, end).medium_cut == expected
    assert cut(document, 1, end).medium_cut == expected
