"""GLM-4.1V, GLM-4.5V, GLM-4.6V and GLM-OCR: pictures near their size, pairs of frames before their times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from preshard.packer_service.ingest.document import Medium, MediumKind
from preshard.packer_service.ingest.families import tiny
from preshard.packer_service.ingest.families.family import Family, Mark, Piece, Placement, Rows
from preshard.packer_service.ingest.families.qwen import shared_sizes
from preshard.packer_service.ingest.families.qwen_sizes import PixelLimits, QwenFamily, fit_frames
from preshard.packer_service.ingest.families.settings import (
    BICUBIC,
    BICUBIC_OF,
    CLIP,
    IMAGE_PROCESSOR,
    STEPS,
    VIDEO_PROCESSOR,
    ModelFolder,
    Section,
)
from preshard.schemas.errors import ConfigError, DocumentError
from preshard.schemas.model.encoders import glm_encoder, glm_ocr_encoder
from preshard.schemas.sections import ImageBackend

IMAGE_START, IMAGE_END = "<|begin_of_image|>", "<|end_of_image|>"
VIDEO_START, VIDEO_END = "<|begin_of_video|>", "<|end_of_video|>"

PROCESSORS = ("Glm4vProcessor", "Glm46VProcessor")
"""Classes of processors, which write times each in its own way. Either may come with any of the models."""

IMAGE_LIMITS = PixelLimits(least=112 * 112, most=28 * 28 * 15000)
VIDEO_LIMITS = PixelLimits(least=112 * 112, most=28 * 28 * 2 * 30000)
"""The processors' own limits of pixels; a still image counts as two frames."""

FRAMES = 2
"""Frames of a patch: the processors take the time of every second one."""

ENCODER: dict[str, Any] = {
    **{"depth": 24, "hidden_size": 1536, "intermediate_size": 13696, "out_hidden_size": 4096},
    **{"patch_size": 14, "temporal_patch_size": FRAMES, "spatial_merge_size": 2},
}
"""Values of the encoder's class for keys that a ``config.json`` leaves out."""

OCR_ENCODER: dict[str, Any] = ENCODER | {
    **{"hidden_size": 1024, "intermediate_size": 4096, "out_hidden_size": 1536, "in_channels": 3},
}
"""The same of GLM-OCR."""


@dataclass(frozen=True, kw_only=True)
class GlmFamily(QwenFamily):
    """Each pair of frames of a video is an image between marks, and its time follows it.

    Attributes:
        processor: name of the processor's class.
    """

    processor: str

    def around(self, kind: MediumKind) -> tuple[str, str]:
        """The marks around an image, and others around a whole video."""
        return (IMAGE_START, IMAGE_END) if kind == "image" else (VIDEO_START, VIDEO_END)

    def check(self, kinds: Sequence[MediumKind]) -> None:
        """The model takes images or videos: it looks for the rows of both at the same token.

        Raises:
            DocumentError: ``bad_row``.
        """
        if len(set(kinds)) > 1:
            raise DocumentError("bad_row", f"shows images and videos, and {self.model_type} takes either, not both")

    def within(self, medium: Medium) -> Family:
        """No limits: the processors know them by other names."""
        return Family.within(self, medium)

    def image(self, width: int, height: int) -> Placement:
        """The whole image near its own size and shape, as one unit."""
        unit = self._unit("image", self._size(width, height, self.together, self.images, "bad_image"), [None], 1.0)
        return Placement(pieces=(Rows(0, unit.rows, self.image_token),), units=(unit,), scaling=self.stills)

    def video(self, width: int, height: int, timestamps: Sequence[float]) -> Placement:
        """All frames in one size, near their own as long as the whole video is within its limits."""
        self.check_frames(len(timestamps))
        size = self._size(width, height, len(timestamps), self.videos, "bad_video")
        pieces: list[Piece] = []
        units = []
        for number, frames in enumerate(self._frames_of_patches(len(timestamps))):
            unit = self._unit("frames", size, frames, 1.0)
            pieces += [Mark(number, IMAGE_START), Rows(number, unit.rows, self.image_token), Mark(number, IMAGE_END)]
            pieces.append(self.time(timestamps[frames[0]]))
            units.append(unit)
        return Placement(pieces=tuple(pieces), units=tuple(units), scaling="bicubic_16_bits")

    def time(self, seconds: float) -> str:
        """The time of a frame as the processor writes it."""
        return str(int(seconds)) if self.processor == PROCESSORS[0] else f"{seconds:.1f} seconds"

    def _size(self, width: int, height: int, frames: int, limits: PixelLimits, code: str) -> tuple[int, int]:
        return fit_frames(
            width, height, limits, factor=self.factor, code=code, frames=frames, time_factor=self.together
        )


def read_family(folder: ModelFolder, backend: ImageBackend) -> GlmFamily:
    """The family with a model folder's settings.

    Raises:
        ConfigError: a file is missing, a setting is not followed, or both processors or the encoder disagree.
    """
    image = folder.image_processor(("Glm4vImageProcessor", "Glm46VImageProcessor"))
    video = folder.video_processor(("Glm4vVideoProcessor", "Glm46VVideoProcessor"))
    whole = folder.processor()
    is_ocr = folder.model_type == "glm_ocr"
    vision = folder.vision(OCR_ENCODER if is_ocr else ENCODER)
    sizes = shared_sizes(image, video, ENCODER["patch_size"])
    limits = [_limits(section, own) for section, own in ((image, IMAGE_LIMITS), (video, VIDEO_LIMITS))]
    for section in (image, video):
        section.fixed({**STEPS, "resample": BICUBIC, "temporal_patch_size": FRAMES})
    for name, value in sizes.items():
        folder.agree(image, name, value, vision["spatial_merge_size" if name == "merge_size" else name])
    encoder = (glm_ocr_encoder if is_ocr else glm_encoder)(vision)
    processor = _processor(folder, (whole, image))
    settings = {"inputs": "qwen_vl", **sizes, **folder.inputs(encoder, backend, (image, video), (CLIP, CLIP))}
    for section in (image, video, whole):
        section.finish()
    image_token, video_token = (folder.named_token(f"{kind}_token", f"<|{kind}|>") for kind in ("image", "video"))
    return GlmFamily(
        model_type=folder.model_type,
        axes=3,
        merge=sizes["merge_size"],
        settings=settings,
        image_token=image_token,
        video_token=video_token,
        row_tokens=(image_token,),
        tokens=(image_token, video_token, IMAGE_START, IMAGE_END, VIDEO_START, VIDEO_END),
        encoder=encoder,
        images=limits[0],
        videos=limits[1],
        stills=BICUBIC_OF[backend],
        processor=processor,
    )


def _limits(section: Section, own: PixelLimits) -> PixelLimits:
    size = section.size({"shortest_edge": own.least, "longest_edge": own.most})
    return PixelLimits(least=size["shortest_edge"], most=size["longest_edge"])


def _processor(folder: ModelFolder, sections: Sequence[Section]) -> str:
    """The processor's class, looked for where ``AutoProcessor`` does: it decides how times are written."""
    named = [section.take("processor_class", "") for section in sections]
    named.append(folder.named_token("processor_class", ""))
    named.append(PROCESSORS[folder.model_type in ("glm46v", "glm_ocr")])
    found = next(str(name) for name in named if name)
    if found not in PROCESSORS:
        raise ConfigError(
            f"model: processor_class {found!r} is not followed for {folder.model_type}, only {', '.join(PROCESSORS)}"
        )
    return found


_NAMED = {
    **{"image_start_token_id": IMAGE_START, "image_end_token_id": IMAGE_END},
    **{"video_start_token_id": VIDEO_START, "video_end_token_id": VIDEO_END},
    **{"image_token_id": "<|image|>", "video_token_id": "<|video|>"},
}
_EXPERTS = {
    **{"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1},
    **{"first_k_dense_replace": 1, "attention_bias": True},
}
_OCR = {"head_dim": 32, "rope_parameters": {**tiny.ROPE, "mrope_section": [4, 6, 6]}}


def _tiny_config(
    text: dict[str, Any], ids: dict[str, int], *, model_type: str, name: str, parts: str, changed: Mapping[str, Any]
) -> dict[str, Any]:
    sections = {"partial_rotary_factor": 0.5, "mrope_section": [2, 1, 1]}
    text = {key: value for key, value in text.items() if changed or key != "head_dim"}
    return {
        **{"model_type": model_type, "architectures": [f"{name}ForConditionalGeneration"]},
        **{key: ids[mark] for key, mark in _NAMED.items()},
        "text_config": {"model_type": f"{parts}_text", **text, "rope_parameters": {**tiny.ROPE, **sections}, **changed},
        "vision_config": {
            **{"model_type": f"{parts}_vision", **tiny.DEEP_VISION},
            **{"image_size": 112, "patch_size": 14, "temporal_patch_size": 2, "spatial_merge_size": 2},
        },
    }


def _processors(name: str) -> tiny.Files:
    """The files of a processor's two parts."""
    shared = {**tiny.CLIP, "patch_size": 14, "temporal_patch_size": FRAMES, "merge_size": 2}
    shared["processor_class"] = f"{name}Processor"
    return {
        IMAGE_PROCESSOR: {
            **{"image_processor_type": f"{name}ImageProcessor", **shared},
            "size": {"shortest_edge": 12544, "longest_edge": 2007040},
        },
        VIDEO_PROCESSOR: {
            **{"video_processor_type": f"{name}VideoProcessor", **shared},
            "size": {"shortest_edge": 12544, "longest_edge": 6291456},
        },
    }


_PUBLISHED = {
    IMAGE_PROCESSOR: {"size": {"shortest_edge": 12544, "longest_edge": 9633792}},
    VIDEO_PROCESSOR: {"size": {"shortest_edge": 12544, "longest_edge": 47040000}},
}


def _tiny(model_type: str, name: str, parts: str, changed: Mapping[str, Any], processor: str) -> tiny.TinyModel:
    return tiny.TinyModel(
        marks=(*tiny.MARKS[:3], *_NAMED.values()),
        config=partial(_tiny_config, model_type=model_type, name=name, parts=parts, changed=changed),
        placeholders=(f"{IMAGE_START}<|image|>{IMAGE_END}", f"{VIDEO_START}<|video|>{VIDEO_END}"),
        processors=_processors(processor),
        published=_PUBLISHED,
    )


TINY = {
    "glm4v": _tiny("glm4v", "Glm4v", "glm4v", {}, "Glm4v"),
    "glm4v_moe": _tiny("glm4v_moe", "Glm4vMoe", "glm4v_moe", _EXPERTS, "Glm4v"),
    "glm46v": _tiny("glm46v", "Glm46V", "glm4v", {}, "Glm46V"),
    "glm_ocr": _tiny("glm_ocr", "GlmOcr", "glm_ocr", _OCR, "Glm46V"),
}
