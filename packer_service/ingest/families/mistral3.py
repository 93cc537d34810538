"""Mistral 3 and LightOnOCR with Pixtral's encoder: pictures near their own size, lines of rows."""

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
    Section,
)
from preshard.schemas.errors import ConfigError, DocumentError
from preshard.schemas.manifest import VisionEncoder
from preshard.schemas.model.encoders import pixtral_encoder
from preshard.schemas.sections import ImageBackend

LONGEST_EDGE = 1024
"""The processor's own limit of a picture's sides."""

PATCH, MERGE, TEXT = 16, 1, 5120
OCR_PATCH, OCR_MERGE, OCR_TEXT = 14, 2, 1024
"""Sizes of the processor and the language model where files leave them out; of LightOnOCR."""

MARKS = {"image_token": "[IMG]", "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]"}
"""Token that fills rows, and the marks after lines, by the processor's names."""

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
        step: sides are rounded up to multiples of so many pixels.
        longest_edge: most pixels along a side before it is rounded up.
        line_end, image_end: the mark after each line of rows, and the one that replaces it after the last line; empty
            in a model without marks.
        stills: how a still becomes its canvas.
    """

    encoder: VisionEncoder
    merged: int
    step: int
    longest_edge: int
    line_end: str
    image_end: str
    stills: Scaling

    def image(self, width: int, height: int) -> Placement:
        """The whole image in its own shape, made smaller if a side is too long.

        Raises:
            DocumentError: ``bad_image``: the shorter side would have no pixel, or no row.
        """
        wide, high = self.fit(width, height)
        patch = self.encoder.patch_size[0]
        lines, row = high // (patch * self.merged), wide // (patch * self.merged)
        if not lines * row:
            raise DocumentError(
                "bad_image",
                f"is {width} x {height} pixels, scaled to {wide} x {high}, and a row of {self.model_type} takes "
                f"{patch * self.merged} x {patch * self.merged}; enlarge it, or cut its longer side",
            )
        grid = (1, high // patch, wide // patch)
        pieces: list[Piece] = []
        for line in range(lines):
            end = self.image_end if line == lines - 1 else self.line_end
            pieces += [Rows(0, row, self.image_token), *([Mark(0, end)] if end else ())]
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
        """Width and height of the canvas: both sides rounded up to whole steps.

        Raises:
            DocumentError: ``bad_image``: the shorter side would have no pixel.
        """
        ratio = max(height / self.longest_edge, width / self.longest_edge)
        sides = [math.floor(side / ratio) if ratio > 1 else side for side in (width, height)]
        if min(sides) < 1:
            raise DocumentError(
                "bad_image", f"is {width} x {height} pixels; at {self.longest_edge} its shorter side would have none"
            )
        wide, high = (((side - 1) // self.step + 1) * self.step for side in sides)
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
    is_ocr = folder.model_type == "lighton_ocr"
    patch = whole.positive("patch_size", OCR_PATCH if is_ocr else PATCH)
    merged = whole.positive("spatial_merge_size", OCR_MERGE if is_ocr else MERGE)
    folder.agree(whole, "patch_size", patch, vision["patch_size"])
    configured = folder.config.get("spatial_merge_size", 2)
    if merged != configured:
        raise ConfigError(
            f"model: spatial_merge_size {merged} of {whole.where} differs from {configured} in config.json"
        )
    tokens = [str(whole.take(name, default)) for name, default in MARKS.items()]
    if is_ocr:  # its processor asks the tokenizer, and writes no marks
        tokens = [folder.named_token("image_token", "<|image_pad|>"), "", ""]
    longest_edge = image.size({"longest_edge": LONGEST_EDGE})["longest_edge"]
    step = _step(image, patch) if is_ocr else patch * merged
    image.take("patch_size", patch)  # the processor of Mistral 3 gives its own instead
    text = (folder.config.get("text_config") or {}).get("hidden_size", OCR_TEXT if is_ocr else TEXT)
    encoder = pixtral_encoder(vision, merged=merged, text=text)
    settings = {"inputs": "pixtral", "pooling": merged, **folder.inputs(encoder, backend, (image, image), (CLIP, CLIP))}
    image.fixed({**STEPS, "do_pad": True, "resample": BICUBIC})
    for section in (image, whole):
        section.finish()
    return Mistral3Family(
        model_type=folder.model_type,
        image_token=tokens[0],
        row_tokens=(tokens[0],),
        tokens=tuple(filter(None, tokens)),
        settings=settings,
        encoder=encoder,
        merged=merged,
        step=step,
        longest_edge=longest_edge,
        line_end=tokens[1],
        image_end=tokens[2],
        stills=BICUBIC_OF[backend],
    )


def _step(image: Section, patch: int) -> int:
    """Pixels to whose multiples the processor of LightOnOCR rounds sides: of whole patches, maybe not of whole rows.

    Raises:
        ConfigError: they are not of whole patches.
    """
    given = image.take("patch_size", PATCH)
    sides = {given} if isinstance(given, int) else set(given.values()) if isinstance(given, dict) else {given}
    if len(sides) != 1 or not isinstance(step := sides.pop(), int) or step < 1 or step % patch:
        raise ConfigError(
            f"model: patch_size of {image.where} is {given!r}; {patch}, as in vision_config of config.json, or a "
            "multiple is legal"
        )
    return step


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


def _tiny_ocr_config(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    shared = _tiny_config(text, {"[IMG]": ids["<|image_pad|>"]})
    del shared["image_token_index"]
    return {
        **{**shared, "model_type": "lighton_ocr", "architectures": ["LightOnOcrForConditionalGeneration"]},
        "image_token_id": ids["<|image_pad|>"],
        "text_config": {"model_type": "qwen3", **text, "rope_parameters": tiny.ROPE},
    }


TINY = {
    "lighton_ocr": tiny.TinyModel(
        marks=tiny.MARKS,
        config=_tiny_ocr_config,
        placeholders=("<|image_pad|>", ""),
        tokenizer_names=dict(zip(MARKS, ("<|image_pad|>", "<|vision_pad|>", "<|vision_end|>"), strict=True)),
        processors={
            IMAGE_PROCESSOR: {
                **tiny.part("image", "PixtralImageProcessor", "LightOnOcrProcessor", tiny.CLIP),
                **{"size": {"longest_edge": 448}, "patch_size": 14},
            },
            PROCESSOR: {"processor_class": "LightOnOcrProcessor", "patch_size": 14, "spatial_merge_size": 2},
        },
        published={IMAGE_PROCESSOR: {"size": {"longest_edge": 1540}}},
    ),
    "mistral3": tiny.TinyModel(
        marks=(*tiny.MARKS[:3], "[IMG]", "[IMG_BREAK]", "[IMG_END]"),
        config=_tiny_config,
        placeholders=("[IMG]", ""),
        processors={
            IMAGE_PROCESSOR: {
                **tiny.part("image", "PixtralImageProcessor", "PixtralProcessor", tiny.CLIP),
                **{"size": {"longest_edge": 448}, "patch_size": 14},
            },
            PROCESSOR: {"processor_class": "PixtralProcessor", "patch_size": 14, "spatial_merge_size": 2, **MARKS},
        },
        published={IMAGE_PROCESSOR: {"size": {"longest_edge": 1540}}},
    ),
}
