"""What the tiny models have in common, and what makes one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

WIDTH, LAYERS, HEADS = 64, 2, 4
VISION_WIDTH, VISION_HEADS, VISION_INNER = 32, 2, 64
CONTEXT = 131072
QWEN_MARKS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>"),
    *("<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>"),
    *("<|image_pad|>", "<|video_pad|>"),
)
"""Qwen2.5's special tokens in the order of their ids."""

IMAGES, VIDEOS, PROCESSOR = "preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json"
"""Files of the processors."""

ROPE = {"rope_type": "default", "rope_theta": 1000000.0}
SECTIONS = [4, 2, 2]
"""How the pairs of a head's dimensions are shared among time, height and width."""

CLIP = {"image_mean": [0.48145466, 0.4578275, 0.40821073], "image_std": [0.26862954, 0.26130258, 0.27577711]}
HALVES = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}


Files = Mapping[str, Mapping[str, Any]]
"""Settings by the file's name and their own."""


@dataclass(frozen=True, kw_only=True)
class DemoModel:
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
