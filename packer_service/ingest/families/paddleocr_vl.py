"""PaddleOCR-VL: pictures near their own size, patches line by line, one square of them a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from preshard.packer_service.ingest.families import tiny
from preshard.packer_service.ingest.families.family import Placement, Rows
from preshard.packer_service.ingest.families.qwen_sizes import PixelLimits, QwenFamily, fit_size
from preshard.packer_service.ingest.families.settings import (
    BICUBIC,
    BICUBIC_OF,
    CLIP,
    IMAGE_PROCESSOR,
    STEPS,
    ModelFolder,
)
from preshard.schemas.model.encoders import siglip_encoder
from preshard.schemas.sections import ImageBackend

IMAGE, IMAGE_START, IMAGE_END = "<|IMAGE_PLACEHOLDER|>", "<|IMAGE_START|>", "<|IMAGE_END|>"

LIMITS = PixelLimits(least=384 * 384, most=1536 * 1536)
"""The processor's own limits of pixels."""

ENCODER: dict[str, Any] = {
    **{"hidden_size": 1152, "num_hidden_layers": 27, "intermediate_size": 4304},
    **{"patch_size": 14, "spatial_merge_size": 2},
}
"""Values of the encoder's class for keys that a ``config.json`` leaves out."""

TEXT = 1024
"""The same of the width of the language model."""


@dataclass(frozen=True, kw_only=True)
class PaddleOcrFamily(QwenFamily):
    """An image is one unit; the model takes no videos."""

    def image(self, width: int, height: int) -> Placement:
        """The whole image near its own size; first the height, then the width is enlarged to one row's."""
        wide, high = width, height
        if high < self.factor:
            wide, high = round(wide * self.factor / high), self.factor
        if wide < self.factor:
            wide, high = self.factor, round(high * self.factor / wide)
        size = fit_size(wide, high, self.images, factor=self.factor, code="bad_image")
        unit = self._unit("image", size, [None], 1.0)
        return Placement(pieces=(Rows(0, unit.rows, self.image_token),), units=(unit,), scaling=self.stills)


def read_family(folder: ModelFolder, backend: ImageBackend) -> PaddleOcrFamily:
    """The family with a model folder's settings.

    Raises:
        ConfigError: a file is missing, a setting is not followed, or the processor and the encoder disagree.
    """
    image = folder.image_processor(("PaddleOCRVLImageProcessor",))
    vision = folder.vision(ENCODER)
    sizes = {
        name: image.positive(name, default)
        for name, default in (("patch_size", ENCODER["patch_size"]), ("merge_size", 2), ("temporal_patch_size", 1))
    }
    folder.agree(image, "patch_size", sizes["patch_size"], vision["patch_size"])
    folder.agree(image, "merge_size", sizes["merge_size"], vision["spatial_merge_size"])
    image.fixed({**STEPS, "resample": BICUBIC, "temporal_patch_size": 1})
    own = {"shortest_edge": LIMITS.least, "longest_edge": LIMITS.most}
    if image.values.get("min_pixels") and image.values.get("max_pixels"):
        image.take("size", own)  # of no effect, under whatever names
    else:
        own = image.size(own)
    limits = PixelLimits(
        least=image.positive("min_pixels", own["shortest_edge"]),
        most=image.positive("max_pixels", own["longest_edge"]),
    )
    nested = folder.config.get("text_config")
    text = (nested if isinstance(nested, dict) else folder.config).get("hidden_size", TEXT)
    encoder = siglip_encoder(vision, merged=sizes["merge_size"], text=text)
    settings = {"inputs": "siglip", **sizes, **folder.inputs(encoder, backend, (image, image), (CLIP, CLIP))}
    for section in (image, folder.processor()):
        section.finish()
    token = folder.named_token("image_token", IMAGE)
    return PaddleOcrFamily(
        model_type=folder.model_type,
        axes=3,
        merge=sizes["merge_size"],
        settings=settings,
        image_token=token,
        opening=IMAGE_START,
        closing=IMAGE_END,
        row_tokens=(token,),
        tokens=(token, IMAGE_START, IMAGE_END),
        encoder=encoder,
        images=limits,
        videos=limits,
        stills=BICUBIC_OF[backend],
    )


def _tiny_config(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    return {
        **{"model_type": "paddleocr_vl", "architectures": ["PaddleOCRVLForConditionalGeneration"]},
        **{"image_token_id": ids[IMAGE], "tie_word_embeddings": False},
        **{"vision_start_token_id": ids[IMAGE_START], "vision_end_token_id": ids[IMAGE_END]},
        "text_config": {
            **{"model_type": "paddleocr_vl_text", **text, "tie_word_embeddings": False},
            "rope_parameters": {**tiny.ROPE, "mrope_section": [4, 2, 2]},
        },
        "vision_config": {
            **{"model_type": "paddleocr_vl_vision", **tiny.VISION},
            **{"image_size": 112, "patch_size": 14, "spatial_merge_size": 2},
        },
    }


def _limits(least: int, most: int) -> dict[str, Any]:
    return {"min_pixels": least, "max_pixels": most}


TINY = {
    "paddleocr_vl": tiny.TinyModel(
        marks=(*tiny.MARKS[:3], IMAGE, IMAGE_START, IMAGE_END),
        config=_tiny_config,
        placeholders=(f"{IMAGE_START}{IMAGE}{IMAGE_END}", ""),
        tokenizer_names={"image_token": IMAGE},
        processors={
            IMAGE_PROCESSOR: {
                **tiny.part("image", "PaddleOCRVLImageProcessor", "PaddleOCRVLProcessor", tiny.HALVES),
                **{"patch_size": 14, "merge_size": 2, "temporal_patch_size": 1, **_limits(3136, 200704)},
            },
        },
        published={IMAGE_PROCESSOR: _limits(147384, 2822400)},
    )
}
