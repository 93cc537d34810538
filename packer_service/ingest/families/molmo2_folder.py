"""A Molmo2 model folder, as published or as ``transformers`` writes it, to its family."""

from __future__ import annotations

from typing import Any

from preshard.packer_service.ingest.families.molmo2 import END, FRAME_END, FRAME_START, LOW_START, START, Molmo2Family
from preshard.packer_service.ingest.families.settings import BACKEND_KEY, HALVES, STEPS, ModelFolder, Section
from preshard.packer_service.ingest.families.work import EncoderWork
from preshard.schemas.config import ImageBackend
from preshard.schemas.encoder import ENCODER_KEY
from preshard.schemas.errors import ConfigError

BILINEAR = 2
"""Pillow's number of the filter that the processors name; they scale without one, between four pixels."""

SMALLEST_SIDE = 65
"""Torch has another kernel, with other roundings, for pictures whose width and height add up to at most 128."""

ENCODER: dict[str, Any] = {
    **{"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 25},
    **{"image_size": (378, 378), "patch_size": 14},
}
ADAPTER: dict[str, Any] = {
    **{"hidden_size": 1152, "intermediate_size": 18944, "text_hidden_size": 3584},
    "vision_feature_layer": (24, 18),
}
"""Values of the classes for keys that a ``config.json`` leaves out."""

VIDEO_STEPS = {"do_rescale": False, "do_normalize": False}
"""Steps that the video processor leaves out unless its file asks for them, as those of the published models do."""

IMAGE_POOLING, VIDEO_POOLING = (2, 2), (3, 3)
"""The processors' own windows of patches that become one row, along height and width."""


def read_molmo2(folder: ModelFolder, backend: ImageBackend) -> Molmo2Family:
    """The family with a model folder's settings.

    Raises:
        ConfigError: a file is missing, a setting is not followed, or another backend is asked for than there is.
    """
    if backend != "torchvision":
        raise ConfigError(
            f"images.backend: {backend!r} is not available: molmo2 has only a torchvision processor; omit the key"
        )
    image = folder.image_processor(("Molmo2ImageProcessor",))
    video = folder.video_processor(("Molmo2VideoProcessor",))
    processor = folder.processor()
    side, patch = _crop(folder, image)
    if _crop(folder, video) != (side, patch):
        raise ConfigError(f"model: size or patch_size of {video.where} differs from that of {image.where}")
    margins = _pair(image, "overlap_margins", (4, 4))
    if sum(margins) >= side // patch:
        raise ConfigError(f"model: overlap_margins {list(margins)} of {image.where} leave nothing of {side // patch}")
    image_pooling = _pair(image, "pooling_size", IMAGE_POOLING)
    video_pooling = _pair(video, "pooling_size", VIDEO_POOLING)
    most_crops = image.positive("max_crops", 8)
    work = _encoder(folder)
    settings = {
        ENCODER_KEY: work.entry(patch=(patch, patch)),
        BACKEND_KEY: backend,
        **{"inputs": "molmo2", "side": side, "patch_size": patch, "overlap_margins": list(margins)},
        **{"image_pooling": list(image_pooling), "video_pooling": list(video_pooling)},
        **{"image_mean": image.numbers("image_mean", HALVES[0]), "image_std": image.numbers("image_std", HALVES[1])},
        **{"video_mean": video.numbers("image_mean", HALVES[0]), "video_std": video.numbers("image_std", HALVES[1])},
    }
    image.fixed({**STEPS, "resample": BILINEAR})
    video.fixed({**STEPS, "resample": BILINEAR}, VIDEO_STEPS)
    columns = bool(processor.take("image_use_col_tokens", True))
    family = Molmo2Family(
        model_type=folder.model_type,
        side=side,
        patch=patch,
        most_crops=most_crops,
        margins=margins,
        image_pooling=image_pooling,
        video_pooling=video_pooling,
        columns=columns,
        low_columns=bool(processor.take("use_single_crop_col_tokens", columns)),
        video_columns=bool(processor.take("video_use_col_tokens", False)),
        low_start=LOW_START if processor.take("use_single_crop_start_token", True) else START,
        frame_marks=(FRAME_START, FRAME_END) if processor.take("use_frame_special_tokens", True) else (START, END),
        work=work,
        image_token=folder.named_token("image_token", "<|image|>"),
        video_token=folder.named_token("video_token", "<|video|>"),
        prefix=folder.named_token("bos_token", "") or folder.named_token("eos_token", ""),
        settings=settings,
    )
    for section in (image, video, processor):
        section.finish()
    return family


def _vision(folder: ModelFolder) -> dict[str, Any]:
    """The encoder's dimensions; published folders have them under older names."""
    names = {"image_default_input_size": "image_size", "image_patch_size": "patch_size"}
    older = folder.config.get("vit_config")
    if folder.config.get("vision_config") is None and isinstance(older, dict):
        folder.config["vision_config"] = {names.get(key, key): value for key, value in older.items()}
    return folder.vision(ENCODER)


def _crop(folder: ModelFolder, section: Section) -> tuple[int, int]:
    size = section.size({"height": 378, "width": 378})
    patch = section.positive("patch_size", 14)
    vision = _vision(folder)
    folder.agree(section, "size", [size["height"], size["width"]], list(vision["image_size"]))
    folder.agree(section, "patch_size", patch, vision["patch_size"])
    if size["height"] < SMALLEST_SIDE:
        raise ConfigError(
            f"model: size {size['height']} of {section.where} is not followed, only {SMALLEST_SIDE} pixels and more: "
            "torch interpolates smaller crops in another way"
        )
    if size["height"] != size["width"] or size["height"] % patch:
        raise ConfigError(f"model: size {size} of {section.where} is not a square of whole patches of {patch}")
    return size["height"], patch


def _pair(section: Section, name: str, default: tuple[int, int]) -> tuple[int, int]:
    value = section.take(name, list(default))
    if len(value) != 2 or not all(isinstance(side, int) and side >= (name == "pooling_size") for side in value):
        raise ConfigError(f"model: {name} of {section.where} is {value!r}; two whole numbers are legal")
    return int(value[0]), int(value[1])


def _encoder(folder: ModelFolder) -> EncoderWork:
    vision, adapter = _vision(folder), folder.vision(ADAPTER, "adapter_config")
    read = len(adapter["vision_feature_layer"]) * vision["hidden_size"]
    return EncoderWork(
        width=vision["hidden_size"],
        inner=vision["intermediate_size"],
        matrices=2,
        layers=vision["num_hidden_layers"],
        # the embedding, and the keys and values of the attention that pools patches into rows
        patch_inputs=3 * vision["patch_size"] ** 2 + 2 * read,
        row_inputs=2 * adapter["hidden_size"],
        row_inner=adapter["intermediate_size"],
        row_outputs=adapter["text_hidden_size"],
    )
