"""Common parts of the tiny models, and the way to make one of them: real in kind, small where size costs time.

Each stands beside its family, which reads its folder; ``preshard demo-model`` writes it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from preshard.packer_service.ingest.document import MediumKind
from preshard.packer_service.ingest.families import settings

WIDTH, LAYERS, HEADS = 64, 2, 4
VISION_WIDTH, VISION_HEADS, VISION_INNER = 32, 2, 64
TEXT: dict[str, Any] = {
    **{"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": LAYERS},
    **{"num_attention_heads": HEADS, "num_key_value_heads": 2, "head_dim": WIDTH // HEADS},
    **{"max_position_embeddings": 131072, "rms_norm_eps": 1e-6, "hidden_act": "silu"},
}
"""The language model, and the encoder as most configurations spell it, and as others do."""
VISION: dict[str, Any] = {
    **{"hidden_size": VISION_WIDTH, "num_hidden_layers": LAYERS},
    **{"num_attention_heads": VISION_HEADS, "intermediate_size": VISION_INNER},
}
DEEP_VISION: dict[str, Any] = {
    **{"depth": LAYERS, "hidden_size": VISION_WIDTH, "num_heads": VISION_HEADS},
    **{"intermediate_size": VISION_INNER, "out_hidden_size": WIDTH},
}
MARKS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
"""Qwen2.5's special tokens in the order of their ids."""

CLIP, HALVES = (
    dict(zip(("image_mean", "image_std"), map(list, colours), strict=True))
    for colours in (settings.CLIP, settings.HALVES)
)
"""Colours as processors' files have them."""

ROPE = {"rope_type": "default", "rope_theta": 1000000.0}

Files = Mapping[str, Mapping[str, Any]]
"""Settings by the file's name and their own."""


@dataclass(frozen=True, kw_only=True)
class TinyModel:
    """A tiny model of one family.

    Attributes:
        marks: its special tokens.
        config: its ``config.json``, from the settings of a language model and the ids of the special tokens.
        placeholders: what a chat template writes for an image and a video.
        tokenizer_names: names under which its processor asks its tokenizer for special tokens.
        processors: the processors' files; none for a model of text.
        published: what the published models' folders say of sizes where the tiny one has less.
    """

    marks: tuple[str, ...]
    config: Callable[[dict[str, Any], dict[str, int]], dict[str, Any]]
    placeholders: tuple[str, str] = ("", "")
    tokenizer_names: Mapping[str, str] = field(default_factory=dict)
    processors: Files = field(default_factory=dict)
    published: Files = field(default_factory=dict)


def part(kind: MediumKind, name: str, processor: str, colours: Mapping[str, Any]) -> dict[str, Any]:
    """First settings of a processor's part for images or videos: classes and colours."""
    return {f"{kind}_processor_type": name, "processor_class": processor, **colours}
