"""The operations behind ``tflops`` are those that torch counts of the unmodified model."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from scripts import load_script

WITHIN = 0.01


@cache
def script(name: str) -> Any:
    return load_script(Path(__file__).with_name(f"{name}.py"))


SOME: list[tuple[str, dict[str, Any]]] = [
    ("qwen3", {}),
    ("gpt2", {}),
    ("jetmoe", {"num_local_experts": 16}),
    ("aria_text", {"moe_num_experts": 16}),
    ("hunyuan_v1_moe", {"num_experts": 16, "moe_topk": [1, 3]}),
    ("ernie4_5_moe", {"moe_num_experts": 16}),
    ("diffllama", {}),
    ("laguna", {"num_attention_heads_per_layer": [4, 8]}),
    ("qwen3_5_moe_text", {"num_experts": 16}),
]
"""One of each way in which experts and scores are counted, with many experts."""


@pytest.mark.parametrize(("kind", "settings"), SOME, ids=[kind for kind, _ in SOME])
def test_work_is_what_torch_counts(kind: str, settings: dict[str, Any]) -> None:
    """Fails when experts that a token is not sent to count, or scores of layers that have none."""
    ours, theirs = script("work").measure(script("followed").tiny_config(kind, **settings))
    assert ours == pytest.approx(theirs, rel=WITHIN)


@pytest.mark.slow
def test_work_of_every_followed_model_is_what_torch_counts() -> None:
    """The same for each model of the list."""
    wrong = {}
    for name, config in script("followed").every_followed():
        ours, theirs = script("work").measure(config)
        if abs(ours / theirs - 1) > WITHIN:
            wrong[name] = ours / theirs
    assert not wrong
