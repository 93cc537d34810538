"""The models that packs are made for and that train on them, by the ``model_type`` of their ``config.json``: facts.

What a family does lies in one file on each side, which is found by the name given here:
``packer_service/ingest/families/FILE.py`` and ``trainer/families/FILE.py``. Nothing else names a family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Version = tuple[int, int]

Option = tuple[tuple[Any, ...], str, str]
"""Values of a setting that are followed, what any other does, and what would work."""

HEAD: Option = (
    (None, 1, False),
    "which changes the logits after the output projection; the loss does not",
    "take a model without",
)
BIDIRECTIONAL: Option = ((None, False), "while packs of text are causal", "take a causal model")
LAST_LAYER: Option = ((None, -1), "while features are those of the encoder's last layer", HEAD[2])


@dataclass(frozen=True, kw_only=True)
class FamilyFacts:
    """A kind of model that reads images.

    Attributes:
        file: name of its files.
        inputs: form in which its encoder takes pictures, under ``inputs`` in a manifest's settings.
        text: its language models; the first is the one that has no other name.
        tiles: how rows follow from stored pictures: ``whole`` pictures, tiles with a ``thumbnail`` behind them, or
            ``overlapping`` tiles behind the whole. None where each unit is a grid, and a square of its patches a row.
        axes: axes of positions where units are grids; else there is one.
        options: as those of a language model, of the whole model.
        since: the first version of ``transformers`` in which it trains.
    """

    file: str
    inputs: str
    text: tuple[str, ...]
    tiles: Literal["whole", "thumbnail", "overlapping"] | None = None
    axes: Literal[1, 3] = 3
    options: Mapping[str, Option] = field(default_factory=dict)
    since: Version = (5, 0)


FAMILIES: dict[str, FamilyFacts] = {
    "qwen3_vl": FamilyFacts(file="qwen", inputs="qwen_vl", text=("qwen3_vl_text",)),
    "qwen3_vl_moe": FamilyFacts(file="qwen", inputs="qwen_vl", text=("qwen3_vl_moe_text",)),
    "qwen3_5": FamilyFacts(file="qwen", inputs="qwen_vl", text=("qwen3_5_text",), since=(5, 23)),
    "qwen3_5_moe": FamilyFacts(file="qwen", inputs="qwen_vl", text=("qwen3_5_moe_text",), since=(5, 23)),
    "qwen2_5_vl": FamilyFacts(file="qwen", inputs="qwen_vl", text=("qwen2_5_vl_text",)),
    "exaone4_5": FamilyFacts(file="qwen", inputs="qwen_vl", text=("exaone4", "exaone4_5_text"), axes=1, since=(5, 23)),
    "molmo2": FamilyFacts(file="molmo2", inputs="molmo2", text=("molmo2_text",), tiles="overlapping", since=(5, 20)),
    "internvl": FamilyFacts(
        file="internvl", inputs="internvl", text=("qwen2", "qwen3", "qwen3_moe", "llama"), tiles="thumbnail"
    ),
    "glm4v": FamilyFacts(file="glm", inputs="qwen_vl", text=("glm4v_text",)),
    "glm4v_moe": FamilyFacts(file="glm", inputs="qwen_vl", text=("glm4v_moe_text",)),
    "glm46v": FamilyFacts(file="glm", inputs="qwen_vl", text=("glm4v_text", "glm4v_moe_text")),
    "glm_ocr": FamilyFacts(file="glm", inputs="qwen_vl", text=("glm_ocr_text",), since=(5, 23)),
    "gemma3": FamilyFacts(file="gemma3", inputs="gemma3", text=("gemma3_text",), tiles="whole", since=(5, 23)),
    "mistral3": FamilyFacts(
        file="mistral3",
        inputs="pixtral",
        text=("mistral", "ministral3", "mistral4"),
        tiles="whole",
        options={"vision_feature_layer": LAST_LAYER},
        since=(5, 23),
    ),
    "lighton_ocr": FamilyFacts(file="mistral3", inputs="pixtral", text=("qwen3",), tiles="whole", since=(5, 23)),
    "paddleocr_vl": FamilyFacts(file="paddleocr_vl", inputs="siglip", text=("paddleocr_vl_text",), since=(5, 23)),
    "kimi_k25": FamilyFacts(file="kimi_k25", inputs="siglip", text=("deepseek_v3", "kimi_k2"), axes=1, since=(5, 23)),
    "gemma4": FamilyFacts(file="gemma4", inputs="gemma4", text=("gemma4_text",), tiles="whole", since=(5, 23)),
}
"""Models that read images."""

INPUTS: dict[str, str] = {facts.inputs: name for name, facts in reversed(FAMILIES.items())}
"""The first family that takes pictures in each form."""

TILES = {facts.inputs: facts.tiles for facts in FAMILIES.values()}
"""Tiles of each form of pictures."""
