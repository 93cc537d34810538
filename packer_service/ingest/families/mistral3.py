"""Mistral 3 with Pixtral's encoder: pictures near their own size, each line of rows ended by a mark."""

from __future__ import annotations

import math
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
    IMAGE_PROCESSOR,
    PROCESSOR,
    STEPS,
    ModelFolder,
)
from preshard.schemas.errors import ConfigError, DocumentError
from preshard.schemas.manifest import VisionEncoder
from preshard.schemas.model.encoders import pixtral_encoder
from preshard.schemas.sections import ImageBackend

LONGEST_EDGE = 1024
"""The processor's own limit of a picture's sides."""

PATCH, MERGE = 16, 1
"""The processor's own sizes, where its file leaves them out."""

ENCODER: dict[str, Any] = {
    **{"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096},
    **{"patch_size": 16, "num_channels": 3},
}
"""Values of the encoder's class for keys that a ``config.json`` leaves out."""

ENCODER_OF_MODEL: dict[str, Any] = {**ENCODER, "patch_size": 14}
"""The same for a ``config.json`` without any ``vision_config``, as the model's class has them."""


@dataclass(frozen=True, kw_only=True)
class Mistral3Family(Family):
    """An image is one unit; the model takes no videos.

    Attributes:
        encoder: its dimensions.
        merged: patches along one side of the square that becomes one row.
        longest_edge: most pixels along a side before it is rounded up to whole rows.
        line_end, image_end: marks after each line of rows, and instead after the last.
        stills: how a still becomes its canvas.
    """

    encoder: VisionEncoder
    merged: int
    longest_edge: int
    line_end: str
    image_end: str
    stills: Scaling

    def image(self, width: int, height: int) -> Placement:
        """The whole image in its own shape, made smaller if a side is too long."""
        wide, high = self.fit(width, height)
        patch = self.encoder.patch_size[0]
        lines, row = high // (patch * self.merged), wide // (patch * self.merged)
        grid = (1, high // patch, wide // patch)
        pieces: list[Piece] = []
        for line in range(lines):
            end = self.image_end if line == lines - 1 else self.line_end
            pieces += [Rows(0, row, self.image_token), Mark(0, end)]
        unit = UnitShape(
            kind="image",
            grid=grid,
            patches=grid[1] * grid[2],
            rows=lines * row,
            load=encoder_load(self.encoder, [grid[1] * grid[2]], lines * row),
            crops=(CropShape.whole(wide, high),),
            time_step=0.0,
        )
        return Placement(pieces=tuple(pieces), units=(unit,), scaling=self.stills)

    def fit(self, width: int, height: int) -> tuple[int, int]:
        """Width and height of the canvas: both sides rounded up to whole rows.

        Raises:
            DocumentError: ``bad_image``: the shorter side would have no pixel.
        """
        ratio = max(height / self.longest_edge, width / self.longest_edge)
        sides = [math.floor(side / ratio) if ratio > 1 else side for side in (width, height)]
        if min(sides) < 1:
            raise DocumentError(
                "bad_image", f"is {width} x {height} pixels; at {self.longest_edge} its shorter side would have none"
            )
        factor = self.encoder.patch_size[0] * self.merged
        wide, high = (((side - 1) // factor + 1) * factor for side in sides)
        return wide, high


def read_family(folder: ModelFolder, backend: ImageBackend) -> Mistral3Family:
    """The family with a model folder's settings.

    Raises:
        ConfigError: a file is missing, a setting is not followed, or the processor and the encoder disagree.
    """
    image = folder.image_processor(("PixtralImageProcessor",))
    whole = folder.processor()
    folder.tokenizer().fixed({"fix_mistral_regex": False})  # `transformers` would cut words in another way
    vision = folder.vision(ENCODER if folder.config.get("vision_config") else ENCODER_OF_MODEL)
    patch, merged = whole.positive("patch_size", PATCH), whole.positive("spatial_merge_size", MERGE)
    folder.agree(whole, "patch_size", patch, vision["patch_size"])
    configured = folder.config.get("spatial_merge_size", 2)
    if merged != configured:
        raise ConfigError(
            f"model: spatial_merge_size {merged} of {whole.where} differs from {configured} in config.json"
        )
    tokens = [
        str(whole.take(name, default))
        for name, default in (
            ("image_token", "[IMG]"),
            ("image_break_token", "[IMG_BREAK]"),
            ("image_end_token", "[IMG_END]"),
        )
    ]
    longest_edge = image.size({"longest_edge": LONGEST_EDGE})["longest_edge"]
    image.take("patch_size", patch)  # the processor gives its own instead
    text = (folder.config.get("text_config") or {}).get("hidden_size", 5120)
    encoder = pixtral_encoder(vision, merged=merged, text=text)
    settings = {"inputs": "pixtral", "pooling": merged, **folder.inputs(encoder, backend, (image, image), (CLIP, CLIP))}
    image.fixed({**STEPS, "do_pad": True, "resample": BICUBIC})
    for section in (image, whole):
        section.finish()
    return Mistral3Family(
        model_type=folder.model_type,
        image_token=tokens[0],
        row_tokens=(tokens[0],),
        tokens=tuple(tokens),
        settings=settings,
        encoder=encoder,
        merged=merged,
        longest_edge=longest_edge,
        line_end=tokens[1],
        image_end=tokens[2],
        stills=BICUBIC_OF[backend],
    )


def _tiny_config(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    return {
        **{"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"]},
        **{"image_token_index": ids["[IMG]"], "spatial_merge_size": 2, "tie_word_embeddings": False},
        "text_config": {"model_type": "mistral", **text, "sliding_window": None, "rope_parameters": tiny.ROPE},
        "vision_config": {
            **{"model_type": "pixtral", **tiny.VISION, "head_dim": tiny.VISION_WIDTH // tiny.VISION_HEADS},
            **{"image_size": 448, "patch_size": 14, "hidden_act": "silu"},
            "rope_parameters": {"rope_type": "axial", "rope_theta": 10000.0},
        },
    }


TINY = {
    "mistral3": tiny.TinyModel(
        marks=(*tiny.MARKS[:3], "[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        config=_tiny_config,
        placeholders=("[IMG]", ""),
        processors={
            IMAGE_PROCESSOR: {
                **tiny.part("image", "PixtralImageProcessor", "PixtralProcessor", tiny.CLIP),
                **{"size": {"longest_edge": 448}, "patch_size": 14},
            },
            PROCESSOR: {
                **{"processor_class": "PixtralProcessor", "patch_size": 14, "spatial_merge_size": 2},
                **{"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"},
            },
        },
        published={IMAGE_PROCESSOR: {"size": {"longest_edge": 1540}}},
    )
}
