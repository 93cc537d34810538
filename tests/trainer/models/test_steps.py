"""Each followed model trains a step on one and on two ranks, as ``transformers`` does on the documents alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from scripts import load_script

CLOSE = 1e-6
"""Relative, in float64: norms and rotary angles are in float32."""

SOME: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", {}),
    ("gpt_bigcode", {}),
    ("apertus", {}),
    ("qwen3_moe", {}),
    ("hunyuan_v1_moe", {"moe_topk": [1, 2]}),
    ("internvl, qwen3_moe", {}),
    ("deepseek_v3", {}),
    ("minicpm3", {}),
]
"""Models whose blocks have another name, whose activations have weights, whose experts are in float64, of which the
whole model may not know, and whose keys and values differ in width.
"""


@cache
def steps() -> Any:
    return load_script(Path(__file__).with_name("steps.py"))


def compare(gloo_pool: Any, folders: dict[str, Path]) -> dict[str, float]:
    """Distance of each model's step from the documents alone, on one rank or two."""
    paths = [str(path) for path in folders.values()]
    on_ranks = [gloo_pool.run(steps().step_on_a_rank, paths, **degrees)[0] for degrees in ({}, {"ring": 2})]
    apart = {}
    for number, (name, path) in enumerate(folders.items()):
        right = steps().alone(str(path))
        found = [abs(a - b) / b for each in on_ranks for a, b in zip(each[number], right, strict=True)]
        apart[name] = max(found)
    return apart


def test_a_step_is_that_of_the_documents(gloo_pool: Any, tmp_path: Path) -> None:
    """Fails when a model lacks what the trainer asks of it, draws no weights for a part, or has experts that do not
    exist in float64.
    """
    folders = {}
    for name, settings in SOME:
        folders |= steps().write_models(tmp_path / name, [name], **settings)
    apart = compare(gloo_pool, folders)
    assert max(apart.values()) < CLOSE, apart


@pytest.mark.slow
def test_a_step_of_every_followed_model_is_that_of_the_documents(gloo_pool: Any, tmp_path: Path) -> None:
    """The same for each model of the list."""
    apart = compare(gloo_pool, steps().write_models(tmp_path))
    assert not {name: each for name, each in apart.items() if not each < CLOSE and name not in steps().DRAWS}
