"""Sizes alone, many of them, beside the functions by which ``transformers`` decides."""

from __future__ import annotations

import random
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from model_oracle import Oracle
from photographs import LARGE_SIZES, ODD_SIZES

from preshard.packer_service.demo.model import tiny_model, write_model_folder
from preshard.packer_service.ingest.families.folder import load_family
from preshard.packer_service.ingest.families.gemma3 import Gemma3Family
from preshard.packer_service.ingest.families.gemma4 import Gemma4Family
from preshard.packer_service.ingest.families.glm import GlmFamily
from preshard.packer_service.ingest.families.internvl import InternVLFamily
from preshard.packer_service.ingest.families.kimi_k25 import KimiFamily
from preshard.packer_service.ingest.families.mistral3 import Mistral3Family
from preshard.packer_service.ingest.families.molmo2 import Molmo2Family
from preshard.packer_service.ingest.families.paddleocr_vl import PaddleOcrFamily
from preshard.packer_service.ingest.families.qwen_sizes import PixelLimits, Qwen25VLFamily, QwenFamily
from preshard.schemas.errors import DocumentError

pytestmark = pytest.mark.process  # importing transformers takes as long as many tests

DRAW = random.Random(0)
SIZES = [
    *(*ODD_SIZES, *LARGE_SIZES),
    *((DRAW.randint(1, 4000), DRAW.randint(1, 3000)) for _ in range(500)),
    *((round(2 ** DRAW.uniform(0, 12)), round(2 ** DRAW.uniform(0, 12))) for _ in range(300)),
]
"""Sizes, even over pixels, and over the logarithm of each side."""


def decided(decide: Callable[[], object]) -> object:
    """Result of a side for a size; None if it refuses it."""
    try:
        return decide()
    except (ValueError, DocumentError):
        return None


@pytest.fixture
def published(oracle: Oracle, tmp_path: Path) -> tuple[str, object]:
    """The family with the geometry of the published models, not the tiny one's."""
    name = oracle.family.model_type
    write_model_folder(tmp_path, name, vocabulary=256, files=tiny_model(name).published)
    return name, load_family(str(tmp_path)).family


def test_every_size_becomes_what_the_processor_decides(published: tuple[str, object]) -> None:
    """Fails when one of 830 sizes from 1 x 1 to 4,000 x 3,000 is scaled, tiled or refused in another way."""
    _, family = published
    if isinstance(family, Gemma3Family):
        pytest.skip("images are always of one size")
    both = [
        (decided(lambda size=size: ours(family, *size)), decided(lambda size=size: theirs(family, *size)))
        for size in SIZES
    ]
    differing = [(size, *pair) for size, pair in zip(SIZES, both, strict=True) if pair[0] != pair[1]]
    assert differing == []
    refused = [size for size, pair in zip(SIZES, both, strict=True) if pair[0] is None]
    takes_thin = not isinstance(family, QwenFamily) and family.model_type != "lighton_ocr"
    assert ((1, 201) in refused) != takes_thin


def ours(family: object, width: int, height: int) -> object:
    """Canvases of an image, in the processor's terms."""
    [unit] = family.image(width, height).units  # type: ignore[attr-defined]
    if isinstance(family, QwenFamily | Gemma4Family | Mistral3Family):
        return unit.crops[0].canvas
    if isinstance(family, KimiFamily):
        return unit.crops[0].canvas, unit.crops[0].size
    if isinstance(family, InternVLFamily):
        return unit.crops[0].canvas, len(unit.crops)
    assert isinstance(family, Molmo2Family)
    rows, cols = family.tiling(width, height)
    return unit.rows, rows * cols + 1 == len(unit.crops), unit.grid[1:]


def theirs(family: object, width: int, height: int) -> object:
    """The same by the functions of ``transformers``."""
    if isinstance(family, GlmFamily):
        return of_glm(family, width, height, family.together, family.images)
    if isinstance(family, QwenFamily):
        kind = "paddleocr_vl" if isinstance(family, PaddleOcrFamily) else "qwen2_vl"
        smart_resize = import_module(f"transformers.models.{kind}.image_processing_pil_{kind}").smart_resize
        limits = family.images
        high, wide = smart_resize(height, width, family.factor, limits.least, limits.most)
        return wide, high
    if isinstance(family, Mistral3Family | KimiFamily):
        return (
            of_mistral3(family, width, height) if isinstance(family, Mistral3Family) else of_kimi(family, width, height)
        )
    if isinstance(family, Gemma4Family):
        from transformers.models.gemma4.image_processing_gemma4 import get_aspect_ratio_preserving_size

        patch, pooling = family.encoder.patch_size[0], family.pooling
        size = get_aspect_ratio_preserving_size(height, width, patch, family.image_rows * pooling**2, pooling)
        return size[::-1]
    if isinstance(family, InternVLFamily):
        from transformers.models.got_ocr2.image_processing_pil_got_ocr2 import get_optimal_tiled_canvas

        cols, rows = get_optimal_tiled_canvas((height, width), family.tile[::-1], family.fewest, family.most)
        return (cols * family.tile[0], rows * family.tile[1]), cols * rows + (cols * rows > 1)
    from transformers.models.molmo2.image_processing_molmo2 import Molmo2ImageProcessor, compute_crop_geometry

    assert isinstance(family, Molmo2Family)
    processor = Molmo2ImageProcessor(
        max_crops=family.most_crops,
        overlap_margins=list(family.margins),
        patch_size=family.patch,
        pooling_size=list(family.image_pooling),
        size={"height": family.side, "width": family.side},
    )
    [low_high, low_wide, high, wide], crops = processor.get_image_grid_and_crops(height, width)
    tall, broad, canvas_high, canvas_wide = compute_crop_geometry(
        height, width, family.most_crops, list(family.margins), family.side, family.patch
    )
    canvas = (canvas_high // family.patch, canvas_wide // family.patch)
    return low_high * low_wide + high * wide, tall * broad + 1 == crops, canvas


def of_glm(family: GlmFamily, width: int, height: int, frames: int, limits: PixelLimits) -> object:
    """Width and height by the function of ``transformers``, which counts frames of stills, too."""
    from transformers.models.glm4v.image_processing_pil_glm4v import smart_resize

    size = smart_resize(frames, height, width, family.together, family.factor, limits.least, limits.most)
    return size[::-1]


def of_kimi(family: KimiFamily, width: int, height: int) -> object:
    """Widths and heights of a picture, and with black beside it, by the function of ``transformers``."""
    from transformers.models.kimi_k25.image_processing_kimi_k25 import navit_resize

    patch = family.encoder.patch_size[0]
    scaled, filled = navit_resize(height, width, patch, family.merge, family.most_patches, family.longest)
    return scaled[::-1], filled[::-1]


def of_mistral3(family: Mistral3Family, width: int, height: int) -> object:
    """Width and height by the function of ``transformers``; there is no filter that makes a picture of no pixel."""
    from transformers.models.pixtral.image_processing_pil_pixtral import get_resize_output_image_size

    size = get_resize_output_image_size(
        np.empty((3, height, width), np.uint8), family.longest_edge, family.step, "channels_first"
    )
    if min(size) < family.encoder.patch_size[0] * family.merged:
        raise ValueError("no pixels, or no row")
    return size[::-1]


def test_every_clip_becomes_what_the_processor_decides(published: tuple[str, object]) -> None:
    """Fails when a video of some size and number of frames is scaled or refused in another way."""
    name, family = published
    if not isinstance(family, QwenFamily) or isinstance(family, PaddleOcrFamily):
        pytest.skip(f"{name} takes no video, or scales every frame to one size")
    from transformers.models.qwen2_vl.video_processing_qwen2_vl import smart_resize as of_frame
    from transformers.models.qwen3_vl.video_processing_qwen3_vl import smart_resize as of_video

    least, most = family.videos.least, family.videos.most
    for width, height in SIZES[:300]:
        frames = DRAW.randint(1, 60)

        def scaled(width: int = width, height: int = height, frames: int = frames) -> object:
            return family.video(width, height, [float(second) for second in range(frames)]).units[0].crops[0].canvas

        def expected(width: int = width, height: int = height, frames: int = frames) -> object:
            if isinstance(family, GlmFamily):
                return of_glm(family, width, height, frames, family.videos)
            if isinstance(family, Qwen25VLFamily):
                return of_frame(height, width, family.factor, least, most)[::-1]
            return of_video(frames, height, width, family.together, family.factor, least, most)[::-1]

        assert decided(scaled) == decided(expected), (width, height, frames)
