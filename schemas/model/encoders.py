"""Vision encoders by the configurations of their models, with the names that ``transformers`` has for each family."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from preshard.schemas.manifest import VisionEncoder

Settings = Mapping[str, Any]
"""A section of a configuration, with the values that ``transformers`` gives to what a file leaves out."""


def qwen_encoder(vision: Settings) -> VisionEncoder:
    """The encoder of Qwen, which has windows if it says how large they are."""
    patch, together = vision["patch_size"], vision["temporal_patch_size"]
    merged = vision["hidden_size"] * vision["spatial_merge_size"] ** 2
    has_windows = "window_size" in vision
    full = len(vision["fullatt_block_indexes"]) if has_windows else vision["depth"]
    mergers, keys = 1 + len(vision.get("deepstack_visual_indexes", ())), vision.get("num_key_value_heads")
    return VisionEncoder(
        patch_size=[patch, patch],
        temporal_patch_size=together,
        hidden_size=vision["hidden_size"],
        intermediate_size=vision["intermediate_size"],
        mlp_matrices=3 if has_windows else 2,
        layers=full,
        windowed_layers=vision["depth"] - full,
        window_size=vision["window_size"] // patch if has_windows else 0,
        patch_inputs=3 * together * patch**2,
        row_inputs=mergers * merged,
        row_hidden=merged,
        row_outputs=mergers * vision["out_hidden_size"],
        key_size=keys and vision["hidden_size"] // vision["num_heads"] * keys,
    )


def glm_encoder(vision: Settings) -> VisionEncoder:
    """The encoder of GLM: its blocks are as wide inside as the rows are, its merger as wide as the setting says."""
    return _encoder_with_merger(vision, inner=vision["out_hidden_size"], merger=vision["intermediate_size"])


def glm_ocr_encoder(vision: Settings) -> VisionEncoder:
    """The encoder of GLM-OCR: its blocks are as wide inside as the setting says, its merger three times the rows."""
    colours = vision["in_channels"]
    return _encoder_with_merger(vision, inner=vision["intermediate_size"], merger=colours * vision["out_hidden_size"])


def _encoder_with_merger(vision: Settings, *, inner: int, merger: int) -> VisionEncoder:
    """An encoder of GLM.

    Args:
        vision: its section.
        inner: width inside an MLP of its blocks.
        merger: width inside the MLP behind them.
    """
    patch, rows = vision["patch_size"], vision["out_hidden_size"]
    return VisionEncoder(
        patch_size=[patch, patch],
        temporal_patch_size=vision["temporal_patch_size"],
        hidden_size=vision["hidden_size"],
        intermediate_size=inner,
        mlp_matrices=3,
        layers=vision["depth"],
        windowed_layers=0,
        window_size=0,
        patch_inputs=3 * vision["temporal_patch_size"] * patch**2,
        # a convolution over a square of patches, then a square matrix and three of a gated MLP
        row_inputs=vision["hidden_size"] * vision["spatial_merge_size"] ** 2,
        row_hidden=rows,
        row_outputs=rows + 3 * merger,
    )


def _encoder_of_stills(vision: Settings, **others: Any) -> VisionEncoder:
    """An encoder that takes each crop for itself, all of whose layers see the whole of it.

    Args:
        vision: its section.
        others: the dimensions that families name or derive each in their own way.
    """
    return VisionEncoder(
        temporal_patch_size=1,
        hidden_size=vision["hidden_size"],
        intermediate_size=vision["intermediate_size"],
        layers=vision["num_hidden_layers"],
        windowed_layers=0,
        window_size=0,
        **others,
    )


def internvl_encoder(vision: Settings, *, ratio: float, text: int | None) -> VisionEncoder:
    """The encoder of InternVL.

    Args:
        vision: its section.
        ratio: rows along a side of a tile for each of its patches there.
        text: width of the language model; that of the merged patches where it is None.
    """
    hidden = int(vision["hidden_size"] / ratio**2)
    high, wide = pair(vision["patch_size"])
    return _encoder_of_stills(
        vision,
        patch_size=[high, wide],
        mlp_matrices=2,
        patch_inputs=3 * high * wide,
        row_inputs=hidden,
        row_hidden=text or hidden,
        row_outputs=text or hidden,
    )


def pixtral_encoder(vision: Settings, *, merged: int, text: int) -> VisionEncoder:
    """The encoder of Mistral 3 and LightOnOCR.

    Args:
        vision: its section.
        merged: patches along each side of the square that becomes a row.
        text: width of the language model.
    """
    hidden, patch = vision["hidden_size"], vision["patch_size"]
    return _encoder_of_stills(
        vision,
        patch_size=[patch, patch],
        mlp_matrices=3,
        patch_inputs=vision["num_channels"] * patch**2,
        # a matrix that merges a square of patches, then two of the projector
        row_inputs=hidden * merged**2,
        row_hidden=hidden,
        row_outputs=text + text**2 // hidden,
    )


def siglip_encoder(vision: Settings, *, merged: int, text: int) -> VisionEncoder:
    """The encoder of PaddleOCR-VL and Kimi K2.5.

    Args:
        vision: its section.
        merged: patches along each side of the square that becomes a row.
        text: width of the language model.
    """
    square, patch = vision["hidden_size"] * merged**2, vision["patch_size"]
    return _encoder_of_stills(
        vision,
        patch_size=[patch, patch],
        mlp_matrices=2,
        patch_inputs=3 * patch**2,
        row_inputs=square,
        row_hidden=square,
        row_outputs=text,
    )


def molmo_encoder(vision: Settings, adapter: Settings) -> VisionEncoder:
    """The encoder of Molmo 2, whose adapter pools patches into rows by attention."""
    read = len(adapter["vision_feature_layer"]) * vision["hidden_size"]
    return _encoder_of_stills(
        vision,
        patch_size=[vision["patch_size"]] * 2,
        mlp_matrices=2,
        # the embedding, and the keys and values of the attention that pools patches into rows
        patch_inputs=3 * vision["patch_size"] ** 2 + 2 * read,
        row_inputs=2 * adapter["hidden_size"],
        row_hidden=adapter["intermediate_size"],
        row_outputs=adapter["text_hidden_size"],
    )


def mean_encoder(vision: Settings, *, mlp_matrices: int, text: int) -> VisionEncoder:
    """The encoder of Gemma, whose rows are means of patches times one matrix.

    Args:
        vision: its section.
        mlp_matrices: matrices of an MLP.
        text: width of the language model.
    """
    return _encoder_of_stills(
        vision,
        patch_size=[vision["patch_size"]] * 2,
        mlp_matrices=mlp_matrices,
        patch_inputs=3 * vision["patch_size"] ** 2,
        row_inputs=vision["hidden_size"],
        row_hidden=text,
        row_outputs=0,
    )


def pair(value: Any) -> tuple[int, int]:
    """Two sides, of which a setting may give one for both."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def _of_internvl(config: Settings) -> VisionEncoder:
    text = config["text_config"]["hidden_size"]
    return internvl_encoder(config["vision_config"], ratio=config["downsample_ratio"], text=text)


def _of_mistral(config: Settings) -> VisionEncoder:
    text = config["text_config"]["hidden_size"]
    return pixtral_encoder(config["vision_config"], merged=config["spatial_merge_size"], text=text)


def _of_paddle(config: Settings) -> VisionEncoder:
    vision, text = config["vision_config"], config["text_config"]["hidden_size"]
    return siglip_encoder(vision, merged=vision["spatial_merge_size"], text=text)


def _of_kimi(config: Settings) -> VisionEncoder:
    vision, text = config["vision_config"], config["text_config"]["hidden_size"]
    return siglip_encoder(vision, merged=vision["merge_kernel_size"][0], text=text)


def _of_gemma(mlp_matrices: int) -> Callable[[Settings], VisionEncoder]:
    return lambda config: mean_encoder(
        config["vision_config"], mlp_matrices=mlp_matrices, text=config["text_config"]["hidden_size"]
    )


ENCODERS: dict[str, Callable[[Settings], VisionEncoder]] = {
    **dict.fromkeys(
        ("qwen2_5_vl", "exaone4_5", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"),
        lambda config: qwen_encoder(config["vision_config"]),
    ),
    **dict.fromkeys(("glm4v", "glm4v_moe", "glm46v"), lambda config: glm_encoder(config["vision_config"])),
    "glm_ocr": lambda config: glm_ocr_encoder(config["vision_config"]),
    "internvl": _of_internvl,
    **dict.fromkeys(("mistral3", "lighton_ocr"), _of_mistral),
    "paddleocr_vl": _of_paddle,
    "kimi_k25": _of_kimi,
    "molmo2": lambda config: molmo_encoder(config["vision_config"], config["adapter_config"]),
    "gemma3": _of_gemma(2),
    "gemma4": _of_gemma(3),
}
"""Encoder of a whole configuration, by its ``model_type``: of every family of :data:`FAMILIES`."""
