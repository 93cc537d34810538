"""Positions with three axes, beside a slow reading of the rule."""

from __future__ import annotations

import numpy as np

from preshard.packer_service.packs.rendered import grid_positions


def test_text_counts_on_from_the_larger_side_of_an_image() -> None:
    """Fails when the text after an image begins at its number of rows, or at the smaller side."""
    unit_ids = np.array([-1, -1, 0, 0, 0, 0, 0, 0, -1, -1], np.int32)
    positions = grid_positions(unit_ids, np.array([[1, 4, 6]]), np.array([0]), np.ones(1, np.float32), 2)
    assert positions.tolist() == [
        [0, 1, 2, 2, 2, 2, 2, 2, 5, 6],
        [0, 1, 2, 2, 2, 3, 3, 3, 5, 6],
        [0, 1, 2, 3, 4, 2, 3, 4, 5, 6],
    ]


def test_units_of_a_video_without_a_token_in_between_are_one_block() -> None:
    """Fails when each unit of such a video begins a block, or the time step is not rounded down."""
    unit_ids = np.array([0, 0, 1, 1, 2, 2, -1], np.int32)
    grids, media = np.array([[1, 2, 4]] * 3), np.zeros(3, np.int64)
    positions = grid_positions(unit_ids, grids, media, np.full(3, 1.5, np.float32), 2)
    assert positions.tolist() == [[0, 0, 1, 1, 3, 3, 2], [0, 0, 0, 0, 0, 0, 2], [0, 1, 0, 1, 0, 1, 2]]


def test_two_images_side_by_side_are_two_blocks() -> None:
    """Fails when rows of different images are joined because no token stands between them."""
    positions = grid_positions(
        np.array([0, 1], np.int32), np.array([[1, 2, 2]] * 2), np.array([0, 1]), np.ones(2, np.float32), 2
    )
    assert positions.tolist() == [[0, 1]] * 3


def test_a_document_of_text_and_an_empty_one() -> None:
    """Fails when a document without units has positions that differ between axes, or none at all is an error."""
    none = np.zeros((0, 3), np.int64), np.zeros(0, np.int64), np.zeros(0, np.float32)
    assert grid_positions(np.full(3, -1, np.int32), *none, 2).tolist() == [[0, 1, 2]] * 3
    assert grid_positions(np.zeros(0, np.int32), *none, 2).shape == (3, 0)
