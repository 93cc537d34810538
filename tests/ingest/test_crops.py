"""The crops of a document, and of a piece of one: each with its document, unit and time."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from preshard.packer_service.config import load_config
from preshard.packer_service.ingest.crops import decode_crops
from preshard.packer_service.ingest.document import Document, Medium, Message
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.render import render_pieces
from preshard.packer_service.packs.crop import Crop
from preshard.packer_service.packs.rendered import RenderedDocument, cut
from preshard.schemas.config import PackConfig

pytestmark = pytest.mark.process  # media are decoded in a process of their own

FRAMES = 3


def brightness(crop: Crop) -> int:
    return round(float(np.asarray(Image.open(io.BytesIO(crop.data)).convert("L")).mean()))


@pytest.fixture
def config() -> PackConfig:
    sizes = ["vision.image_size=28", "vision.pool_size=1", "vision.max_crops=2"]
    return load_config(None, [*sizes, "image_format=png", "video.fps=25"])


@pytest.fixture
def rendered(tmp_path: Path, make_video: Callable[..., Path], config: PackConfig) -> RenderedDocument:
    """A wide image (two tiles and a thumbnail, all of brightness 200), a video of three frames, and the image again."""
    Image.new("RGB", (56, 28), (200, 200, 200)).save(tmp_path / "wide.png")
    make_video("v.mp4", n_frames=FRAMES, picture=lambda number: np.full((64, 96, 3), 40 * number + 20, np.uint8))
    image = Medium(kind="image", uri="wide.png")
    parts = (image, Medium(kind="video", uri="v.mp4"), image, "What is it?")
    turns = (Message(role="user", parts=parts), Message(role="assistant", parts=("A test.",)))
    [piece] = render_pieces(Document(branches=(turns,)), MediaReach.of(str(tmp_path)), config)
    assert piece.units.crops.tolist() == [3, 1, 1, 1, 3]
    assert piece.truncated == 0
    return piece


def test_every_crop_knows_its_document_unit_and_time(
    rendered: RenderedDocument, tmp_path: Path, config: PackConfig
) -> None:
    """Fails when crops come in another order than their tokens, or a frame has the unit or time of another."""
    crops = list(decode_crops(rendered, MediaReach.of(str(tmp_path)), config, doc_id="d"))
    assert {crop.doc_id for crop in crops} == {"d"}
    assert [crop.unit for crop in crops] == [0, 0, 0, 1, 2, 3, 4, 4, 4]
    assert [crop.timestamp for crop in crops] == [None] * 3 + [0.0, 0.04, 0.08] + [None] * 3
    np.testing.assert_allclose([brightness(crop) for crop in crops], [200] * 3 + [20, 60, 100] + [200] * 3, atol=3)
    assert {(crop.width, crop.height) for crop in crops} == {(28, 28)}


def test_a_piece_decodes_only_its_own_frames(rendered: RenderedDocument, tmp_path: Path, config: PackConfig) -> None:
    """Fails when a piece that begins within a video gets the frames of the piece before it."""
    start = int(rendered.units.edges[2, 0])
    piece = cut(rendered, start, int(rendered.units.edges[3, 1]))
    assert piece.units.numbers.tolist() == [2, 3]
    crops = list(decode_crops(piece, MediaReach.of(str(tmp_path)), config, doc_id="d"))
    assert [(crop.unit, crop.timestamp) for crop in crops] == [(0, 0.04), (1, 0.08)]
    np.testing.assert_allclose([brightness(crop) for crop in crops], [60, 100], atol=3)
