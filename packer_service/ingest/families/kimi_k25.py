"""Kimi K2.5 and K2.6: pictures that are never enlarged, black to the right and below up to whole rows of patches."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from preshard.packer_service.ingest.document import MediumKind
from preshard.packer_service.ingest.families import tiny
from preshard.packer_service.ingest.families.family import (
    CropShape,
    Family,
    Placement,
    Rows,
    UnitShape,
    encoder_load,
)
from preshard.packer_service.ingest.families.settings import (
    BICUBIC,
    HALVES,
    IMAGE_PROCESSOR,
    STEPS,
    VIDEO_PROCESSOR,
    ModelFolder,
)
from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import VisionEncoder
from preshard.schemas.model.encoders import siglip_encoder
from preshard.schemas.sections import ImageBackend

BEGIN, CONTENT, PAD, END = "<|media_begin|>", "<|media_content|>", "<|media_pad|>", "<|media_end|>"

MOST_PATCHES, MOST_PATCHES_A_SIDE = 16384, 512
"""The processor's own limits."""

ENCODER: dict[str, Any] = {
    **{"hidden_size": 1152, "num_hidden_layers": 27, "intermediate_size": 4304},
    **{"patch_size": 14, "merge_kernel_size": [2, 2]},
}
"""Values of the encoder's class for keys that a ``config.json`` leaves out."""

TEXT = 4096
"""The same of the width of the language model."""


@dataclass(frozen=True, kw_only=True)
class KimiFamily(Family):
    """An image is one unit.

    Attributes:
        encoder: its dimensions.
        most_patches: of a picture, before its sides are rounded up.
        longest: most patches along a side.
    """

    encoder: VisionEncoder
    most_patches: int
    longest: int

    def alone(self, kind: MediumKind) -> str:
        """The placeholder with all that Kimi's chat template writes around it."""
        return f"{BEGIN}{kind}{super().alone(kind)}"

    def image(self, width: int, height: int) -> Placement:
        """The whole image near its own size and shape, with black beside it up to whole rows."""
        patch, (wide, high) = self.encoder.patch_size[0], self.fit(width, height)
        step = patch * self.merge
        size = -(-wide // step) * step, -(-high // step) * step
        grid = (1, size[1] // patch, size[0] // patch)
        patches = grid[1] * grid[2]
        rows = patches // self.merge**2
        unit = UnitShape(
            kind="image",
            grid=grid,
            patches=patches,
            rows=rows,
            load=encoder_load(self.encoder, [patches], rows),
            crops=(CropShape(canvas=(wide, high), box=(0, 0, *size)),),
            time_step=0.0,
        )
        return Placement(pieces=(Rows(0, rows, self.image_token),), units=(unit,), scaling="bicubic_16_bits")

    def fit(self, width: int, height: int) -> tuple[int, int]:
        """Width and height within both limits, by one factor and with the arithmetic of ``transformers``."""
        patch = self.encoder.patch_size[0]
        edge, patches = self.longest * patch, max(1, height // patch) * max(1, width // patch)
        scale = min(1.0, math.sqrt(self.most_patches / patches), edge / height, edge / width)
        wide, high = (min(max(1, int(side * scale)), edge) for side in (width, height))
        return wide, high


def read_family(folder: ModelFolder, backend: ImageBackend) -> KimiFamily:
    """The family with a model folder's settings.

    Raises:
        ConfigError: a file is missing, a setting is not followed, the processor and the encoder disagree, or another
            backend is asked for than there is.
    """
    if backend != "torchvision":
        raise ConfigError(
            f"images.backend: {backend!r} is not available: kimi_k25 has only a torchvision processor; omit the key"
        )
    image = folder.image_processor(("Kimi_K25ImageProcessor",))
    vision = folder.vision(ENCODER)
    sizes = {name: image.positive(name, default) for name, default in (("patch_size", 14), ("merge_size", 2))}
    folder.agree(image, "patch_size", sizes["patch_size"], vision["patch_size"])
    folder.agree(image, "merge_size", [sizes["merge_size"]] * 2, list(vision["merge_kernel_size"]))
    limits = image.size({"max_height": MOST_PATCHES_A_SIDE, "max_width": MOST_PATCHES_A_SIDE})
    if limits["max_height"] != limits["max_width"]:
        raise ConfigError(f"model: size of {image.where} is {limits}; max_height and max_width must be the same")
    most = image.positive("max_patches", MOST_PATCHES)
    image.fixed({**STEPS, "do_pad": None, "resample": BICUBIC})
    text = (folder.config.get("text_config") or {}).get("hidden_size", TEXT)
    encoder = siglip_encoder(vision, merged=sizes["merge_size"], text=text)
    settings = {"inputs": "siglip", **sizes, **folder.inputs(encoder, backend, (image, image), (HALVES, HALVES))}
    for section in (image, folder.processor()):
        section.finish()
    token = folder.named_token("image_token", PAD)
    return KimiFamily(
        model_type=folder.model_type,
        merge=sizes["merge_size"],
        settings=settings,
        image_token=token,
        opening=CONTENT,
        closing=END,
        row_tokens=(token,),
        tokens=(token, BEGIN, CONTENT, END),
        encoder=encoder,
        most_patches=most,
        longest=limits["max_height"],
    )


_LATENT: dict[str, Any] = {
    **{"num_key_value_heads": tiny.HEADS, "q_lora_rank": 24, "kv_lora_rank": 20, "qk_nope_head_dim": 12},
    **{"v_head_dim": 16, "qk_rope_head_dim": 8, "head_dim": 8},
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_shared_experts": 1},
    **{"first_k_dense_replace": 1, "n_group": 2, "topk_group": 1},
}


def _tiny_config(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    return {
        **{"model_type": "kimi_k25", "architectures": ["Kimi_K25ForConditionalGeneration"]},
        **{"image_token_id": ids[PAD], "vision_start_token_id": ids[BEGIN], "vision_end_token_id": ids[END]},
        **{"projection_hidden_size": tiny.VISION_WIDTH, "tie_word_embeddings": False},
        "text_config": {"model_type": "deepseek_v3", **text, "rope_parameters": tiny.ROPE, **_LATENT},
        "vision_config": {
            **{"model_type": "kimi_k25_vision", **tiny.VISION, "patch_size": 14, "merge_kernel_size": [2, 2]},
            **{"pos_emb_height": 8, "pos_emb_width": 8},
        },
    }


TINY = {
    "kimi_k25": tiny.TinyModel(
        marks=(*tiny.MARKS[:3], BEGIN, CONTENT, PAD, END),
        config=_tiny_config,
        placeholders=(f"{BEGIN}image{CONTENT}{PAD}{END}", ""),
        tokenizer_names={"image_token": PAD},
        processors={
            IMAGE_PROCESSOR: {
                **tiny.part("image", "Kimi_K25ImageProcessor", "Kimi_K25Processor", tiny.HALVES),
                **{"patch_size": 14, "merge_size": 2, "max_patches": 1024},
                "size": {"max_height": 64, "max_width": 64},
            },
            VIDEO_PROCESSOR: tiny.part("video", "Kimi_K25VideoProcessor", "Kimi_K25Processor", tiny.HALVES),
        },
        published={IMAGE_PROCESSOR: {"max_patches": MOST_PATCHES, "size": {"max_height": 512, "max_width": 512}}},
    )
}
