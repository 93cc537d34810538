"""The generic way says of sizes what the renderer and the decoder make of them."""

from __future__ import annotations

import pytest

from preshard.packer_service.ingest.families.family import CropShape, Mark, Placement, Rows
from preshard.packer_service.ingest.families.folder import SquareFamily
from preshard.packer_service.ingest.text.tokenizer import ImageFormat
from preshard.schemas.sections import VisionConfig

VISION = VisionConfig(image_size=28, patch_size=14, pool_size=2, max_crops=4)
BEGIN, TOKEN, SEPARATOR, END = 1, 2, 3, 4
FAMILY = SquareFamily(VISION, ImageFormat(begin=(BEGIN,), token=TOKEN, separator=(SEPARATOR,), end=(END,)), 1)


def tokens(placement: Placement) -> list[int | str]:
    """The pieces with every row spelled out."""
    spelled: list[int | str] = []
    for piece in placement.pieces:
        spelled += [piece.token] * piece.count if isinstance(piece, Rows) else []
        spelled += [piece.token] if isinstance(piece, Mark) else []
        spelled += [piece] if isinstance(piece, str) else []
    return spelled


def test_an_image_of_several_tiles_is_one_unit_with_a_thumbnail() -> None:
    """Fails when tiles lose their order, or the separator stands elsewhere than between crops."""
    placement = FAMILY.image(56, 28)
    [unit] = placement.units
    assert tokens(placement) == [BEGIN, TOKEN, SEPARATOR, TOKEN, SEPARATOR, TOKEN, END]
    assert [crop.box for crop in unit.crops] == [(0, 0, 28, 28), (28, 0, 56, 28), (0, 0, 28, 28)]
    assert [crop.canvas for crop in unit.crops] == [(56, 28), (56, 28), (28, 28)]
    assert (unit.kind, unit.grid, unit.patches, unit.rows, unit.load) == ("image", (3, 2, 2), 12, 3, 3)


def test_each_frame_is_a_unit_after_its_time_stamp() -> None:
    """Fails when a frame's time is not written in front of it, or frames share a unit."""
    placement = FAMILY.video(640, 480, [0.0, 0.25])
    assert tokens(placement) == ["0.0s", BEGIN, TOKEN, END, "0.2s", BEGIN, TOKEN, END]
    assert [unit.crops for unit in placement.units] == [(CropShape.whole(28, 28, frame),) for frame in (0, 1)]


@pytest.mark.parametrize("size", [(1, 1), (28, 28)])
def test_an_image_of_one_tile_has_no_thumbnail(size: tuple[int, int]) -> None:
    """Fails when a single tile is stored twice."""
    assert [unit.crops for unit in FAMILY.image(*size).units] == [(CropShape.whole(28, 28),)]
