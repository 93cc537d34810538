"""InternVL: tiles of one size in the shape nearest to the image's, and every frame of a video as one tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from preshard.packer_service.ingest.families import tiny
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
    CLIP,
    CONFIG,
    IMAGE_PROCESSOR,
    PROCESSOR,
    STEPS,
    VIDEO_PROCESSOR,
    ModelFolder,
    Section,
)
from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import UnitKind, VisionEncoder
from preshard.schemas.model.encoders import internvl_encoder, pair
from preshard.schemas.sections import ImageBackend

SIZE = {"height": 384, "width": 384}
"""The processors' own size of a tile."""

ENCODER: dict[str, Any] = {
    **{"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096},
    **{"image_size": (448, 448), "patch_size": (14, 14)},
}
"""Values of the encoder's class for keys that a ``config.json`` leaves out."""


@dataclass(frozen=True, kw_only=True)
class InternVLFamily(Family):
    """A still image is one unit of its tiles and a thumbnail; each frame of a video is a unit.

    Attributes:
        tile: width and height in pixels.
        grid: patches of a tile along height and width.
        fewest, most: tiles of a still image.
        start, end: marks around the rows of a unit.
        stills: how a still becomes its canvas.
    """

    tile: tuple[int, int]
    grid: tuple[int, int]
    rows_per_tile: int
    fewest: int
    most: int
    encoder: VisionEncoder
    start: str
    end: str
    stills: Scaling

    def image(self, width: int, height: int) -> Placement:
        """Tiles in reading order and, if there are several, a thumbnail of the whole, between one pair of marks."""
        cols, rows = self.tiling(width, height)
        crops = CropShape.tiled(cols, rows, self.tile)
        unit = self._unit("image", crops, (1, rows * self.grid[0], cols * self.grid[1]))
        pieces = (Mark(0, self.start), Rows(0, unit.rows, self.image_token), Mark(0, self.end))
        return Placement(pieces=pieces, units=(unit,), scaling=self.stills)

    def video(self, width: int, height: int, timestamps: Sequence[float]) -> Placement:  # noqa: ARG002
        """``Frame1:`` and so on before each frame, on a line of its own; the model is told no times."""
        pieces: list[Piece] = []
        units = []
        for frame in range(len(timestamps)):
            unit = self._unit("frame", (CropShape.whole(*self.tile, frame),), (1, *self.grid))
            pieces += [f"\nFrame{frame + 1}: " if frame else "Frame1: ", Mark(frame, self.start)]
            pieces += [Rows(frame, unit.rows, self.image_token), Mark(frame, self.end)]
            units.append(unit)
        return Placement(pieces=tuple(pieces), units=tuple(units), scaling="bicubic_16_bits")

    def tiling(self, width: int, height: int) -> tuple[int, int]:
        """Columns and rows of tiles whose shape is nearest to the image's (Chen et al. 2024, InternVL 1.5, section 3).

        Of equally near ones the larger is taken as long as the image has more than half of its pixels.
        """
        nearest, chosen = float("inf"), (1, 1)
        tilings = [
            (cols, rows)
            for cols in range(1, self.most + 1)
            for rows in range(1, self.most + 1)
            if self.fewest <= cols * rows <= self.most
        ]
        for cols, rows in sorted(tilings, key=lambda tiling: tiling[0] * tiling[1]):
            difference = abs(width / height - cols / rows)
            larger = width * height > 0.5 * self.tile[1] * self.tile[0] * cols * rows
            if difference < nearest or (difference == nearest and larger):
                nearest, chosen = difference, (cols, rows)
        return chosen

    def _unit(self, kind: UnitKind, crops: tuple[CropShape, ...], grid: tuple[int, int, int]) -> UnitShape:
        per_tile, rows = self.grid[0] * self.grid[1], self.rows_per_tile * len(crops)
        load = encoder_load(self.encoder, [per_tile] * len(crops), rows)
        patches = per_tile * len(crops)
        return UnitShape(kind=kind, grid=grid, patches=patches, rows=rows, load=load, crops=crops, time_step=0.0)


def read_family(folder: ModelFolder, backend: ImageBackend) -> InternVLFamily:
    """The family with a model folder's settings.

    Raises:
        ConfigError: a file is missing, or a setting is not followed.
    """
    image = folder.image_processor(("GotOcr2ImageProcessor",))
    video = folder.video_processor(("InternVLVideoProcessor",))
    processor = folder.processor()
    size = _tile(folder, image)
    if _tile(folder, video) != size:
        raise ConfigError(f"model: size of {video.where} differs from that of {image.where}: tiles are of one size")
    fewest, most = image.positive("min_patches", 1), image.positive("max_patches", 12)
    image.take("crop_to_patches", True)  # the processor asks for tiles whatever this says
    rows = processor.positive("image_seq_length", 256)
    encoder, grid = _encoder(folder, rows)
    settings = {"inputs": "internvl", **folder.inputs(encoder, backend, (image, video), (CLIP, CLIP))}
    for section in (image, video):
        section.fixed({**STEPS, "resample": BICUBIC})
    for section in (image, video, processor):
        section.finish()
    row_token = folder.named_token("context_image_token", "<IMG_CONTEXT>")
    video_token = folder.named_token("video_token", "<video>")
    start = folder.named_token("start_image_token", "<img>")
    end = folder.named_token("end_image_token", "</img>")
    return InternVLFamily(
        model_type=folder.model_type,
        image_token=row_token,
        video_token=video_token,
        row_tokens=(row_token,),
        tokens=(row_token, video_token, start, end),
        settings=settings,
        tile=size,
        grid=grid,
        rows_per_tile=rows,
        fewest=fewest,
        most=most,
        encoder=encoder,
        start=start,
        end=end,
        stills=BICUBIC_OF[backend],
    )


def _tile(folder: ModelFolder, section: Section) -> tuple[int, int]:
    size = section.size(SIZE)
    height, width = pair(folder.vision(ENCODER)["image_size"])
    folder.agree(section, "size", (size["height"], size["width"]), (height, width))
    return width, height


def _encoder(folder: ModelFolder, rows: int) -> tuple[VisionEncoder, tuple[int, int]]:
    """The encoder, and the patches of a tile."""
    vision = folder.vision(ENCODER)
    (height, width), (high, wide) = pair(vision["image_size"]), pair(vision["patch_size"])
    grid = (height // high, width // wide)
    ratio = folder.config.get("downsample_ratio", 0.5)
    expected = int(grid[0] * ratio) * int(grid[1] * ratio)
    if rows != expected:
        raise ConfigError(
            f"model: image_seq_length {rows} differs from the {expected} rows that the encoder of {CONFIG} makes of a "
            f"tile of {grid[0]} x {grid[1]} patches"
        )
    text = (folder.config.get("text_config") or {}).get("hidden_size")
    return internvl_encoder(vision, ratio=ratio, text=text), grid


def _tiny_config(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    return {
        **{"model_type": "internvl", "architectures": ["InternVLForConditionalGeneration"]},
        **{"image_token_id": ids["<IMG_CONTEXT>"], "image_seq_length": 16, "downsample_ratio": 0.5},
        "tie_word_embeddings": False,
        "text_config": {"model_type": "qwen3", **text, "rope_parameters": tiny.ROPE},
        "vision_config": {
            **{"model_type": "internvl_vision", **tiny.VISION, "image_size": [112, 112], "patch_size": [14, 14]},
        },
    }


TINY = {
    "internvl": tiny.TinyModel(
        marks=(*tiny.MARKS[:3], "<img>", "</img>", "<IMG_CONTEXT>", "<video>"),
        config=_tiny_config,
        placeholders=("<IMG_CONTEXT>\n", "<video>\n"),
        tokenizer_names={
            **{"start_image_token": "<img>", "end_image_token": "</img>"},
            **{"context_image_token": "<IMG_CONTEXT>", "video_token": "<video>"},
        },
        processors={
            IMAGE_PROCESSOR: {
                **tiny.part("image", "GotOcr2ImageProcessor", "InternVLProcessor", tiny.CLIP),
                **{
                    "size": {"height": 112, "width": 112},
                    "min_patches": 1,
                    "max_patches": 12,
                    "crop_to_patches": False,
                },
            },
            VIDEO_PROCESSOR: {
                **tiny.part("video", "InternVLVideoProcessor", "InternVLProcessor", tiny.CLIP),
                "size": {"height": 112, "width": 112},
            },
            PROCESSOR: {"processor_class": "InternVLProcessor", "image_seq_length": 16},
        },
        published={
            CONFIG: {"vision_config": {"image_size": [448, 448]}, "image_seq_length": 256},
            IMAGE_PROCESSOR: {"size": {"height": 448, "width": 448}},
            VIDEO_PROCESSOR: {"size": {"height": 448, "width": 448}},
            PROCESSOR: {"image_seq_length": 256},
        },
    )
}
