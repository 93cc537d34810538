"""The manifest's ``model``, as the JSON of a model folder's files says it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from preshard.packer_service.verify.independent.vocabulary import TOKENIZER_CONFIG, read_json, spelling
from preshard.schemas.config import PackConfig
from preshard.schemas.model.families import FAMILIES
from preshard.schemas.model.followed import layer_masks

CONFIG, PROCESSOR = "config.json", "processor_config.json"
IMAGES, VIDEOS = "preprocessor_config.json", "video_preprocessor_config.json"

Files = Mapping[str, bytes]
Json = dict[str, Any]

_CLIP = ([0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711])
_HALVES, _UNCHANGED = ([0.5] * 3, [0.5] * 3), ([0.0] * 3, [1.0] * 3)
COLOURS = {"kimi_k25": _HALVES, "molmo2": _HALVES, "gemma3": _HALVES, "gemma4": _UNCHANGED}
"""Mean and deviation that processors have by default, where not CLIP's."""

ONLY_STILLS = ("gemma3", "kimi_k25", "mistral3", "paddleocr_vl")
"""Files of families that take no video."""

MOLMO2_GROUP = (
    *("<im_patch>", "<im_col>", "<im_start>", "<low_res_im_start>", "<frame_start>", "<im_end>", "<frame_end>"),
    "<im_low>",
)


def named_token(files: Files, name: str, default: str) -> str:
    """A special token that a tokenizer has under a name."""
    configured = read_json(files, TOKENIZER_CONFIG)
    extra = configured.get("extra_special_tokens")
    given = configured.get(name) or (extra.get(name) if isinstance(extra, dict) else None)
    return spelling(given) or default


def row_tokens(files: Files, family: str) -> list[str]:
    """The tokens that rows fill, by the name of a family's file."""
    names = {
        "qwen": (("image_token", "<|image_pad|>"), ("video_token", "<|video_pad|>")),
        "glm": (("image_token", "<|image|>"),),
        "gemma3": (("image_token", "<image_soft_token>"),),
        "gemma4": (("image_token", "<|image|>"), ("video_token", "<|video|>")),
        "paddleocr_vl": (("image_token", "<|IMAGE_PLACEHOLDER|>"),),
        "kimi_k25": (("image_token", "<|media_pad|>"),),
        "internvl": (("context_image_token", "<IMG_CONTEXT>"),),
    }
    if family == "molmo2":
        return ["<im_patch>"]
    if family == "mistral3":
        if read_json(files, CONFIG).get("model_type") == "lighton_ocr":
            return [named_token(files, "image_token", "<|image_pad|>")]
        return [str(read_json(files, PROCESSOR).get("image_token") or "[IMG]")]
    return [named_token(files, *each) for each in names[family]]


def processors(files: Files) -> tuple[Json, Json, Json]:
    """Settings of the processor itself, of its part for images and of its part for videos."""
    whole = read_json(files, PROCESSOR)

    def part(name: str, *others: str) -> Json:
        nested = whole.get(name)
        return nested if nested is not None else next((read_json(files, each) for each in others if each in files), {})

    return whole, part("image_processor", IMAGES), part("video_processor", VIDEOS, IMAGES)


def derive_model(files: Files, config: PackConfig, ids: Mapping[str, int]) -> Json:
    """The fields of a manifest's model but ``files``, those that are left out as null.

    Args:
        files: those that are carried, with ``config.json`` among them.
        config: the dataset's configuration.
        ids: of special tokens.

    Raises:
        KeyError: a file lacks what every such model has.
    """
    model = read_json(files, CONFIG)
    kind = str(model.get("model_type", ""))
    masks = layer_masks(model, config.seq_len, "model")
    derived: Json = {
        **{"model_type": kind, "axes": 1, "merge": 1, "row_ids": [], "group_ids": [], "settings": {}},
        **{"bidirectional": None, "masks": None if masks is None else masks.model_dump()},
    }
    if kind not in FAMILIES:
        return derived
    facts = FAMILIES[kind]
    _, image, video = processors(files)
    if facts.file in ONLY_STILLS:
        video = image
    still = moving = COLOURS.get(facts.file, _CLIP)
    if facts.file == "qwen" and kind not in _WINDOWED:
        moving = _HALVES
    settings = {
        **{"inputs": facts.inputs, "image_backend": config.images.backend},
        **{"image_mean": _colours(image, "image_mean", still[0]), "image_std": _colours(image, "image_std", still[1])},
        **{
            "video_mean": _colours(video, "image_mean", moving[0]),
            "video_std": _colours(video, "image_std", moving[1]),
        },
        **_SETTINGS[facts.file](model, processors(files)),
    }
    sees = {"gemma3": True, "gemma4": _text(model).get("use_bidirectional_attention") == "vision"}
    return derived | {
        "axes": 1 if facts.tiles else facts.axes,
        "merge": 1 if facts.tiles else settings["merge_size"],
        "row_ids": [ids[name] for name in row_tokens(files, facts.file)],
        "group_ids": [ids[name] for name in MOLMO2_GROUP] if facts.file == "molmo2" else [],
        "bidirectional": "within_image" if sees.get(facts.file) else None,
        "settings": settings,
    }


def files_that_decide(files: Files, kind: str) -> list[str]:
    """Names of carried files of the model folder from which a family is read."""
    names = [CONFIG]
    if kind in FAMILIES:
        names += [IMAGES, PROCESSOR, TOKENIZER_CONFIG]
        names += [] if FAMILIES[kind].file in ONLY_STILLS else [VIDEOS]
    return sorted(name for name in names if name in files)


def _text(model: Json) -> Json:
    nested = model.get("text_config")
    return nested if isinstance(nested, dict) else {}


def _or(section: Json, name: str, default: Any) -> Any:
    """A setting; one that is null has its default."""
    value = section.get(name)
    return default if value is None else value


def _colours(section: Json, name: str, default: list[float]) -> list[float]:
    value = _or(section, name, default)
    return [float(value)] * 3 if isinstance(value, int | float) else [float(number) for number in value]


def _vision(model: Json, defaults: Json, name: str = "vision_config") -> Json:
    given = model.get(name)
    given = given if isinstance(given, dict) else {}
    return {key: _or(given, key, default) for key, default in defaults.items()}


def _encoder(patch: list[int], **sizes: int) -> Json:
    unsaid = {"temporal_patch_size": 1, "windowed_layers": 0, "window_size": 0}
    return {"encoder": {"patch_size": patch, **unsaid, **sizes}}


def _pair(value: Any) -> list[int]:
    return [value, value] if isinstance(value, int) else list(value)


_WINDOWED = {"qwen2_5_vl": {"tokens_per_second": 4}, "exaone4_5": {"num_heads": 16, "num_key_value_heads": 8}}
"""The models of Qwen's kind whose encoders have windows, and what each of these encoders has besides."""

_QWEN: dict[str, Json] = {
    **{
        name: {
            **{"depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "out_hidden_size": 3584, "patch_size": 14},
            **{"window_size": 112, "fullatt_block_indexes": (7, 15, 23, 31), **own},
        }
        for name, own in _WINDOWED.items()
    },
    "glm": {
        **{"depth": 24, "hidden_size": 1536, "intermediate_size": 13696, "out_hidden_size": 4096, "patch_size": 14},
    },
    "glm_ocr": {
        **{"depth": 24, "hidden_size": 1024, "intermediate_size": 4096, "out_hidden_size": 1536, "patch_size": 14},
        "in_channels": 3,
    },
    "": {
        **{"depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "out_hidden_size": 3584, "patch_size": 16},
        "deepstack_visual_indexes": (),
    },
}
"""Values of the encoders' classes where ``config.json`` says nothing."""


def _shared(image: Json, patch: int) -> Json:
    defaults = {"patch_size": patch, "temporal_patch_size": 2, "merge_size": 2}
    return {name: _or(image, name, value) for name, value in defaults.items()}


def _qwen(model: Json, parts: tuple[Json, Json, Json]) -> Json:
    kind = model["model_type"]
    defaults = {**_QWEN.get(kind, _QWEN[""]), "temporal_patch_size": 2, "spatial_merge_size": 2}
    if kind in ("qwen3_vl", "qwen3_vl_moe"):
        defaults["deepstack_visual_indexes"] = (8, 16, 24)
    vision = _vision(model, defaults)
    patch, square = vision["patch_size"], vision["hidden_size"] * vision["spatial_merge_size"] ** 2
    windows = vision.get("window_size", 0)
    full = len(vision["fullatt_block_indexes"]) if windows else vision["depth"]
    mergers = 1 + len(vision.get("deepstack_visual_indexes", ()))
    return {
        **_shared(parts[1], defaults["patch_size"]),
        **{name: vision[name] for name in ("tokens_per_second",) if name in vision},
        **_encoder(
            [patch] * 2,
            temporal_patch_size=vision["temporal_patch_size"],
            hidden_size=vision["hidden_size"],
            intermediate_size=vision["intermediate_size"],
            mlp_matrices=3 if windows else 2,
            layers=full,
            windowed_layers=vision["depth"] - full,
            window_size=windows // patch,
            patch_inputs=3 * vision["temporal_patch_size"] * patch**2,
            row_inputs=mergers * square,
            row_hidden=square,
            row_outputs=mergers * vision["out_hidden_size"],
            **_grouped(vision),
        ),
    }


def _grouped(vision: Json) -> dict[str, int]:
    """Width of the keys of several heads each."""
    if "num_key_value_heads" not in vision:
        return {}
    return {"key_size": vision["hidden_size"] // vision["num_heads"] * vision["num_key_value_heads"]}


def _glm(model: Json, parts: tuple[Json, Json, Json]) -> Json:
    own = _QWEN.get(model["model_type"], _QWEN["glm"])
    vision = _vision(model, {**own, "temporal_patch_size": 2, "spatial_merge_size": 2})
    width, inner = vision["out_hidden_size"], vision["intermediate_size"]
    # the older encoders have the width of the rows inside a block, and that of the setting in the merger
    inside, merger = (inner, width * vision["in_channels"]) if "in_channels" in vision else (width, inner)
    return {
        **_shared(parts[1], _QWEN["glm"]["patch_size"]),
        **_encoder(
            [vision["patch_size"]] * 2,
            temporal_patch_size=vision["temporal_patch_size"],
            hidden_size=vision["hidden_size"],
            intermediate_size=inside,
            mlp_matrices=3,
            layers=vision["depth"],
            patch_inputs=3 * vision["temporal_patch_size"] * vision["patch_size"] ** 2,
            row_inputs=vision["hidden_size"] * vision["spatial_merge_size"] ** 2,
            row_hidden=width,
            row_outputs=width + 3 * merger,
        ),
    }


def _means(model: Json, vision: Json, matrices: int) -> Json:
    """Description of the encoders whose rows are means of patches times one matrix."""
    return _encoder(
        [vision["patch_size"]] * 2,
        hidden_size=vision["hidden_size"],
        intermediate_size=vision["intermediate_size"],
        mlp_matrices=matrices,
        layers=vision["num_hidden_layers"],
        patch_inputs=3 * vision["patch_size"] ** 2,
        row_inputs=vision["hidden_size"],
        row_hidden=_or(_text(model), "hidden_size", 2304),
        row_outputs=0,
    )


def _gemma3(model: Json, parts: tuple[Json, Json, Json]) -> Json:
    defaults = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "patch_size": 16}
    vision, size = _vision(model, defaults), _or(parts[1], "size", {"height": 224})["height"]
    lines = math.isqrt(model.get("mm_tokens_per_image") or 256)
    return {"pooling": size // vision["patch_size"] // lines, **_means(model, vision, 2)}


def _gemma4(model: Json, parts: tuple[Json, Json, Json]) -> Json:
    _, image, video = parts
    defaults = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "patch_size": 16}
    vision = _vision(model, {**defaults, "pooling_kernel_size": 3})
    square = vision["pooling_kernel_size"] ** 2
    return {
        **{"patch_size": vision["patch_size"], "pooling": vision["pooling_kernel_size"]},
        **{"image_patches": _or(image, "max_soft_tokens", 280) * square},
        **{"video_patches": _or(video, "max_soft_tokens", 70) * square},
        **{"image_normalised": bool(_or(image, "do_normalize", False))},
        **{"video_normalised": bool(_or(video, "do_normalize", True))},
        **_means(model, vision, 3),
    }


def _internvl(model: Json, parts: tuple[Json, Json, Json]) -> Json:  # noqa: ARG001
    defaults = {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096, "patch_size": (14, 14)}
    vision, ratio = _vision(model, defaults), model.get("downsample_ratio", 0.5)
    patch, square = _pair(vision["patch_size"]), int(vision["hidden_size"] / ratio**2)
    width = _text(model).get("hidden_size", square)
    return _encoder(
        patch,
        hidden_size=vision["hidden_size"],
        intermediate_size=vision["intermediate_size"],
        mlp_matrices=2,
        layers=vision["num_hidden_layers"],
        patch_inputs=3 * patch[0] * patch[1],
        row_inputs=square,
        row_hidden=width,
        row_outputs=width,
    )


def _mistral3(model: Json, parts: tuple[Json, Json, Json]) -> Json:
    defaults = {"hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 4096, "num_channels": 3}
    is_ocr = model["model_type"] == "lighton_ocr"
    vision = _vision(model, {**defaults, "patch_size": 16 if model.get("vision_config") else 14})
    merged, hidden = _or(parts[0], "spatial_merge_size", 2 if is_ocr else 1), vision["hidden_size"]
    width = _text(model).get("hidden_size", 1024 if is_ocr else 5120)
    return {
        "pooling": merged,
        **_encoder(
            [vision["patch_size"]] * 2,
            hidden_size=hidden,
            intermediate_size=vision["intermediate_size"],
            mlp_matrices=3,
            layers=vision["num_hidden_layers"],
            patch_inputs=vision["num_channels"] * vision["patch_size"] ** 2,
            row_inputs=hidden * merged**2,
            row_hidden=hidden,
            row_outputs=width + width**2 // hidden,
        ),
    }


def _paddleocr_vl(model: Json, parts: tuple[Json, Json, Json]) -> Json:
    nested, sizes = model.get("text_config"), {"patch_size": 14, "merge_size": 2, "temporal_patch_size": 1}
    vision = _vision(model, {**_SIGLIP, "spatial_merge_size": 2})
    text = (nested if isinstance(nested, dict) else model).get("hidden_size", 1024)
    return {
        **{name: _or(parts[1], name, value) for name, value in sizes.items()},
        **_siglip(vision, patches_a_row=vision["spatial_merge_size"] ** 2, text=text),
    }


def _kimi_k25(model: Json, parts: tuple[Json, Json, Json]) -> Json:
    vision = _vision(model, {**_SIGLIP, "merge_kernel_size": (2, 2)})
    text = _text(model).get("hidden_size", 4096)
    return {
        **{name: _or(parts[1], name, value) for name, value in (("patch_size", 14), ("merge_size", 2))},
        **_siglip(vision, patches_a_row=math.prod(vision["merge_kernel_size"]), text=text),
    }


_SIGLIP = {"hidden_size": 1152, "num_hidden_layers": 27, "intermediate_size": 4304, "patch_size": 14}


def _siglip(vision: Json, *, patches_a_row: int, text: int) -> Json:
    """An encoder with two layers behind it that make a row of some patches, as wide as the language model."""
    square = vision["hidden_size"] * patches_a_row
    return _encoder(
        [vision["patch_size"]] * 2,
        hidden_size=vision["hidden_size"],
        intermediate_size=vision["intermediate_size"],
        mlp_matrices=2,
        layers=vision["num_hidden_layers"],
        patch_inputs=3 * vision["patch_size"] ** 2,
        row_inputs=square,
        row_hidden=square,
        row_outputs=text,
    )


def _molmo2(model: Json, parts: tuple[Json, Json, Json]) -> Json:
    _, image, video = parts
    older = model.get("vit_config")
    if model.get("vision_config") is None and isinstance(older, dict):
        model = {**model, "vision_config": {key.removeprefix("image_"): value for key, value in older.items()}}
    vision = _vision(model, {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 25, "patch_size": 14})
    adapter = _vision(
        model,
        {
            **{"hidden_size": 1152, "intermediate_size": 18944, "text_hidden_size": 3584},
            "vision_feature_layer": (24, 18),
        },
        "adapter_config",
    )
    layers_read = len(adapter["vision_feature_layer"]) * vision["hidden_size"]
    return {
        **{"side": _or(image, "size", {"height": 378})["height"], "patch_size": _or(image, "patch_size", 14)},
        "overlap_margins": list(_or(image, "overlap_margins", (4, 4))),
        **{"image_pooling": list(_or(image, "pooling_size", (2, 2)))},
        **{"video_pooling": list(_or(video, "pooling_size", (3, 3)))},
        **_encoder(
            [vision["patch_size"]] * 2,
            hidden_size=vision["hidden_size"],
            intermediate_size=vision["intermediate_size"],
            mlp_matrices=2,
            layers=vision["num_hidden_layers"],
            patch_inputs=3 * vision["patch_size"] ** 2 + 2 * layers_read,
            row_inputs=2 * adapter["hidden_size"],
            row_hidden=adapter["intermediate_size"],
            row_outputs=adapter["text_hidden_size"],
        ),
    }


_SETTINGS: dict[str, Callable[[Json, tuple[Json, Json, Json]], Json]] = {
    **{"qwen": _qwen, "glm": _glm, "gemma3": _gemma3, "gemma4": _gemma4},
    **{"internvl": _internvl, "mistral3": _mistral3, "molmo2": _molmo2, "paddleocr_vl": _paddleocr_vl},
    "kimi_k25": _kimi_k25,
}
"""Further settings of each family, by the name of its file."""
