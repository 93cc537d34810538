"""Gemma 3: an image is one square of fixed size; no videos. Gemma 4: pictures of their own shape within a number of
patches, each frame of a video after its time. The rows of a picture see each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from preshard.packer_service.ingest.families.family import (
    CropShape,
    Family,
    Mark,
    Piece,
    Placement,
    Rows,
    Scaling,
    UnitShape,
    encoder_load,
)
from preshard.packer_service.ingest.families.settings import (
    BICUBIC,
    BICUBIC_OF,
    CONFIG,
    HALVES,
    STEPS,
    Colours,
    ModelFolder,
    Section,
)
from preshard.schemas.config import ImageBackend
from preshard.schemas.errors import ConfigError, DocumentError
from preshard.schemas.manifest import UnitKind
from preshard.schemas.model.encoder import VisionEncoder

BILINEAR = 2
"""Pillow's number of the filter that the processors scale with."""

BILINEAR_OF: dict[ImageBackend, Scaling] = {"torchvision": "triangle_16_bits", "pil": "triangle"}
"""That filter, as it is in each backend of image processors."""

ENCODER: dict[str, Any] = {
    **{"model_type": "siglip_vision_model", "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12},
    **{"image_size": 224, "patch_size": 16},
}
"""Values of the encoder's class for keys that a ``config.json`` leaves out."""

PAN_AND_SCAN = ("pan_and_scan_min_crop_size", "pan_and_scan_max_num_crops", "pan_and_scan_min_ratio_to_activate")
"""Settings without effect as long as ``do_pan_and_scan`` is off."""


UNCHANGED: Colours = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
"""Mean and deviation by which nothing changes: the encoder expects pixels between 0 and 1."""

SOFT_TOKENS = (70, 140, 280, 560, 1120)
"""Most rows of a picture, as the processors take them."""

ENCODER4: dict[str, Any] = {
    **{"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16},
    **{"patch_size": 16, "pooling_kernel_size": 3},
}
"""The same of Gemma 4."""

OF_AUDIO = ("image_seq_length", "audio_seq_length", "audio_ms_per_token")
"""Settings of the processor that say nothing of pictures: it counts the rows of each."""


@dataclass(frozen=True, kw_only=True)
class Gemma3Family(Family):
    """A still image is one crop between marks, on lines of their own.

    Attributes:
        side: of a crop in pixels.
        grid: patches of a crop along each side.
        rows: of a crop.
        row, end: the token that rows fill, and the mark after them; a chat template writes the mark before.
        stills: how a still becomes its crop.
    """

    side: int
    grid: int
    rows: int
    row: str
    end: str
    encoder: VisionEncoder
    stills: Scaling
    bidirectional: Literal["", "within_image"] = "within_image"

    def image(self, width: int, height: int) -> Placement:  # noqa: ARG002
        """The whole image as one square, whatever its shape."""
        patches = self.grid**2
        unit = UnitShape(
            kind="image",
            grid=(1, self.grid, self.grid),
            patches=patches,
            rows=self.rows,
            load=encoder_load(self.encoder, [patches], self.rows),
            crops=(CropShape.whole(self.side, self.side),),
            time_step=0.0,
        )
        pieces = ("\n\n", Mark(0, self.image_token), Rows(0, self.rows, self.row), Mark(0, self.end), "\n\n")
        return Placement(pieces=pieces, units=(unit,), scaling=self.stills)


@dataclass(frozen=True, kw_only=True)
class Gemma4Family(Family):
    """A still image is one crop between marks, and so is each frame of a video.

    Attributes:
        opens, closes: the marks.
        pooling: patches along each side of the square that becomes a row.
        image_rows, video_rows: most rows of a still image, and of a frame.
        stills: how a still becomes its crop.
    """

    opens: str
    closes: str
    pooling: int
    image_rows: int
    video_rows: int
    encoder: VisionEncoder
    stills: Scaling

    def image(self, width: int, height: int) -> Placement:
        """The whole image, in the largest size of about its own shape."""
        unit = self._unit("image", self.size(width, height, self.image_rows, "bad_image"), None)
        return Placement(pieces=self._pieces(0, unit, self.image_token), units=(unit,), scaling=self.stills)

    def video(self, width: int, height: int, timestamps: Sequence[float]) -> Placement:
        """Minutes and seconds before each frame."""
        size = self.size(width, height, self.video_rows, "bad_video")
        pieces: list[Piece] = []
        units = []
        for frame, timestamp in enumerate(timestamps):
            unit = self._unit("frame", size, frame)
            time = f"{int(timestamp // 60):02d}:{int(timestamp % 60):02d}"
            pieces += [f"{' ' if frame else ''}{time} ", *self._pieces(frame, unit, self.video_token)]
            units.append(unit)
        return Placement(pieces=tuple(pieces), units=tuple(units), scaling="bicubic_16_bits")

    def size(self, width: int, height: int, rows: int, code: str) -> tuple[int, int]:
        """Width and height of a crop: whole rows, as many as fit.

        Raises:
            DocumentError: ``code``: one side is so short that none is left of it.
        """
        patch = self.encoder.patch_size[0]
        side, most = self.pooling * patch, rows * self.pooling**2 * patch**2
        factor = math.sqrt(most / (height * width))
        high, wide = (math.floor(factor * length / side) * side for length in (height, width))
        if high == wide == 0:
            raise DocumentError(code, f"is {width} x {height} pixels, of which nothing is left in {rows} rows")
        if high == 0:
            high, wide = side, min(math.floor(width / height) * side, rows * side)
        elif wide == 0:
            high, wide = min(math.floor(height / width) * side, rows * side), side
        if high * wide > most:
            raise DocumentError(code, f"is {width} x {height} pixels, more than {rows} rows")
        return wide, high

    def _unit(self, kind: UnitKind, size: tuple[int, int], frame: int | None) -> UnitShape:
        wide, high = (side // self.encoder.patch_size[0] for side in size)
        rows = wide * high // self.pooling**2
        load = encoder_load(self.encoder, [wide * high], rows)
        crops = (CropShape.whole(*size, frame),)
        return UnitShape(
            kind=kind, grid=(1, high, wide), patches=wide * high, rows=rows, load=load, crops=crops, time_step=0.0
        )

    def _pieces(self, number: int, unit: UnitShape, token: str) -> tuple[Piece, ...]:
        return Mark(number, self.opens), Rows(number, unit.rows, token), Mark(number, self.closes)


def read_gemma3(folder: ModelFolder, backend: ImageBackend) -> Gemma3Family:
    """The family with a model folder's settings.

    Raises:
        ConfigError: a file is missing, or a setting is not followed.
    """
    image, processor = folder.image_processor(("Gemma3ImageProcessor",)), folder.processor()
    vision = folder.vision(ENCODER)
    side = _side(folder, image, vision)
    rows = processor.positive("image_seq_length", 256)
    grid = side // vision["patch_size"]
    pooling = _pooling(folder, grid, rows)
    encoder = _encoder(folder, vision, 2)
    settings = {
        **{"inputs": "gemma3", "pooling": pooling},
        **folder.inputs(encoder, backend, (image, image), (HALVES, HALVES)),
    }
    image.fixed({**STEPS, "resample": BILINEAR, "do_pan_and_scan": False})
    for name in PAN_AND_SCAN:
        image.take(name, None)
    for section in (image, processor):
        section.finish()
    start = folder.named_token("boi_token", "<start_of_image>")
    row, end = (
        folder.named_token("image_token", "<image_soft_token>"),
        folder.named_token("eoi_token", "<end_of_image>"),
    )
    return Gemma3Family(
        model_type=folder.model_type,
        image_token=start,
        row_tokens=(row,),
        tokens=(start, row, end),
        settings=settings,
        side=side,
        grid=grid,
        rows=rows,
        row=row,
        end=end,
        encoder=encoder,
        stills=BILINEAR_OF[backend],
    )


def _side(folder: ModelFolder, image: Section, vision: dict[str, Any]) -> int:
    if vision["model_type"] != ENCODER["model_type"]:
        raise ConfigError(
            f"model: model_type {vision['model_type']!r} in vision_config of {CONFIG} is not followed, only "
            f"{ENCODER['model_type']}"
        )
    size = image.size({"height": 224, "width": 224})
    folder.agree(image, "size", [size["height"], size["width"]], [vision["image_size"]] * 2)
    return size["height"]


def _pooling(folder: ModelFolder, grid: int, rows: int) -> int:
    """Patches along each side of the square whose mean becomes a row."""
    per_side = math.isqrt(folder.config.get("mm_tokens_per_image") or 256)
    pooling = grid // per_side
    made = (grid // pooling) ** 2 if pooling else 0
    if rows != made:
        raise ConfigError(
            f"model: image_seq_length {rows} differs from the {made} rows that the projector of {CONFIG} makes of "
            f"{grid} x {grid} patches"
        )
    return pooling


def read_gemma4(folder: ModelFolder, backend: ImageBackend) -> Gemma4Family:
    """The family with a model folder's settings.

    Raises:
        ConfigError: a file is missing, or a setting is not followed.
    """
    image = folder.image_processor(("Gemma4ImageProcessor",))
    video = folder.video_processor(("Gemma4VideoProcessor",))
    processor, vision = folder.processor(), folder.vision(ENCODER4)
    rows = [_rows(folder, section, own, vision) for section, own in ((image, 280), (video, 70))]
    normalised = {
        "image_normalised": bool(image.take("do_normalize", False)),
        "video_normalised": bool(video.take("do_normalize", True)),
    }
    encoder, pooling = _encoder(folder, vision, 3), vision["pooling_kernel_size"]
    settings = {
        **{"inputs": "gemma4", "patch_size": vision["patch_size"], "pooling": pooling},
        **{"image_patches": rows[0] * pooling**2, "video_patches": rows[1] * pooling**2, **normalised},
        **folder.inputs(encoder, backend, (image, video), (UNCHANGED, UNCHANGED)),
    }
    steps = {name: value for name, value in STEPS.items() if name != "do_normalize"}
    for section in (image, video):
        section.fixed({**steps, "resample": BICUBIC})
        section.take("size", None)
    for section in (image, video, processor):
        for name in OF_AUDIO:
            section.take(name, None)
        section.finish()
    image_token, video_token = folder.named_token("image_token", "<|image|>"), "<|video|>"
    opens, closes = folder.named_token("boi_token", "<|image>"), folder.named_token("eoi_token", "<image|>")
    text = folder.vision({"use_bidirectional_attention": None}, "text_config")
    return Gemma4Family(
        model_type=folder.model_type,
        image_token=image_token,
        video_token=video_token,
        row_tokens=(image_token, video_token),
        tokens=(image_token, video_token, opens, closes),
        bidirectional="within_image" if text["use_bidirectional_attention"] == "vision" else "",
        settings=settings,
        opens=opens,
        closes=closes,
        pooling=pooling,
        image_rows=rows[0],
        video_rows=rows[1],
        encoder=encoder,
        stills=BICUBIC_OF[backend],
    )


def _rows(folder: ModelFolder, section: Section, own: int, vision: dict[str, Any]) -> int:
    """Most rows of a picture, by the processor's own number where its file leaves it out."""
    for name in ("patch_size", "pooling_kernel_size"):
        folder.agree(section, name, section.positive(name, ENCODER4[name]), vision[name])
    rows = section.positive("max_soft_tokens", own)
    if rows not in SOFT_TOKENS:
        legal = ", ".join(map(str, SOFT_TOKENS))
        raise ConfigError(f"model: max_soft_tokens of {section.where} is {rows}; one of {legal} is legal")
    return rows


def _encoder(folder: ModelFolder, vision: dict[str, Any], mlp_matrices: int) -> VisionEncoder:
    """The encoder, whose rows are means of patches times one matrix."""
    text = folder.vision({"hidden_size": 2304}, "text_config")
    return VisionEncoder(
        patch_size=[vision["patch_size"]] * 2,
        temporal_patch_size=1,
        hidden_size=vision["hidden_size"],
        intermediate_size=vision["intermediate_size"],
        mlp_matrices=mlp_matrices,
        layers=vision["num_hidden_layers"],
        windowed_layers=0,
        window_size=0,
        patch_inputs=3 * vision["patch_size"] ** 2,
        row_inputs=vision["hidden_size"],
        row_hidden=text["hidden_size"],
        row_outputs=0,
    )
