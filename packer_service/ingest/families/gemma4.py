"""Gemma 4: pictures of their own shape within a number of patches, each frame of a video after its time."""

from __future__ import annotations

import math
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
from preshard.packer_service.ingest.families.gemma3 import text_width
from preshard.packer_service.ingest.families.settings import (
    BICUBIC,
    BICUBIC_OF,
    IMAGE_PROCESSOR,
    PROCESSOR,
    STEPS,
    VIDEO_PROCESSOR,
    Colours,
    ModelFolder,
    Section,
)
from preshard.schemas.errors import ConfigError, DocumentError
from preshard.schemas.manifest import UnitKind, VisionEncoder
from preshard.schemas.model.encoders import mean_encoder
from preshard.schemas.sections import ImageBackend

UNCHANGED: Colours = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
"""Mean and deviation by which nothing changes: the encoder expects pixels between 0 and 1."""

SOFT_TOKENS = (70, 140, 280, 560, 1120)
"""Most rows of a picture, as the processors take them."""

ENCODER: dict[str, Any] = {
    **{"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16},
    **{"patch_size": 16, "pooling_kernel_size": 3},
}
"""Values of the encoder's class for keys that a ``config.json`` leaves out."""

OF_AUDIO = ("image_seq_length", "audio_seq_length", "audio_ms_per_token")
"""Settings of the processor that say nothing of pictures: it counts the rows of each."""


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


def read_family(folder: ModelFolder, backend: ImageBackend) -> Gemma4Family:
    """The family with a model folder's settings.

    Raises:
        ConfigError: a file is missing, or a setting is not followed.
    """
    image = folder.image_processor(("Gemma4ImageProcessor",))
    video = folder.video_processor(("Gemma4VideoProcessor",))
    processor, vision = folder.processor(), folder.vision(ENCODER)
    rows = [_rows(folder, section, own, vision) for section, own in ((image, 280), (video, 70))]
    normalised = {
        "image_normalised": bool(image.take("do_normalize", False)),
        "video_normalised": bool(video.take("do_normalize", True)),
    }
    encoder, pooling = mean_encoder(vision, mlp_matrices=3, text=text_width(folder)), vision["pooling_kernel_size"]
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
        media_tokens=(folder.named_token("audio_token", "<|audio|>"),),
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
        folder.agree(section, name, section.positive(name, ENCODER[name]), vision[name])
    rows = section.positive("max_soft_tokens", own)
    if rows not in SOFT_TOKENS:
        legal = ", ".join(map(str, SOFT_TOKENS))
        raise ConfigError(f"model: max_soft_tokens of {section.where} is {rows}; one of {legal} is legal")
    return rows


_NAMED = {
    **{"boi_token": "<|image>", "image_token": "<|image|>", "eoi_token": "<image|>"},
    **{"boa_token": "<|audio>", "audio_token": "<|audio|>", "eoa_token": "<audio|>"},
}


def _tiny_config(text: dict[str, Any], ids: dict[str, int]) -> dict[str, Any]:
    """Keys of full layers are their values, wider, and of one head."""
    rope = {
        "sliding_attention": {**tiny.ROPE, "rope_theta": 10000.0},
        "full_attention": {**tiny.ROPE, "rope_type": "proportional", "partial_rotary_factor": 0.25},
    }
    named = {name: ids[mark] for name, mark in (*_NAMED.items(), ("video_token", "<|video|>"))}
    return {
        **{"model_type": "gemma4", "architectures": ["Gemma4ForConditionalGeneration"]},
        **{f"{name}_id" if name != "eoa_token" else "eoa_token_index": number for name, number in named.items()},
        **{"audio_config": None, "eos_token_id": text["eos_token_id"]},
        "text_config": {
            **{"model_type": "gemma4_text", **text, "rope_parameters": rope, "final_logit_softcapping": 0.5},
            **{"sliding_window": 12, "num_hidden_layers": 3},
            "layer_types": ["full_attention", "sliding_attention", "full_attention"],
            **{"use_bidirectional_attention": "vision", "attention_k_eq_v": True, "num_kv_shared_layers": 0},
            **{"global_head_dim": 32, "num_global_key_value_heads": 1, "hidden_size_per_layer_input": 0},
        },
        "vision_config": {
            **{"model_type": "gemma4_vision", **tiny.VISION, "num_key_value_heads": tiny.VISION_HEADS, "head_dim": 16},
            **{"patch_size": 16, "pooling_kernel_size": 3},
            **{"position_embedding_size": 1024, "standardize": True},
        },
    }


_CUT = {"image_mean": [0.0, 0.0, 0.0], "image_std": [1.0, 1.0, 1.0], "patch_size": 16, "pooling_kernel_size": 3}

TINY = {
    "gemma4": tiny.TinyModel(
        marks=(*tiny.MARKS[:3], *_NAMED.values(), "<|video|>"),
        config=_tiny_config,
        placeholders=("<|image|>", "<|video|>"),
        tokenizer_names=_NAMED,
        processors={
            IMAGE_PROCESSOR: {
                **{"image_processor_type": "Gemma4ImageProcessor", "processor_class": "Gemma4Processor", **_CUT},
                **{"do_normalize": False, "max_soft_tokens": 70, "resample": 3},
            },
            VIDEO_PROCESSOR: {
                **{"video_processor_type": "Gemma4VideoProcessor", "processor_class": "Gemma4Processor", **_CUT},
                **{"do_normalize": True, "max_soft_tokens": 70, "resample": 3},
            },
            PROCESSOR: {
                **{"processor_class": "Gemma4Processor", "image_seq_length": 70},
                "feature_extractor": {"feature_extractor_type": "Gemma4AudioFeatureExtractor"},
            },
        },
        published={IMAGE_PROCESSOR: {"max_soft_tokens": 280}, PROCESSOR: {"image_seq_length": 280}},
    )
}
