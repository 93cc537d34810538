"""Models under ``torch.autocast``, as trainers call them whose user asks for bfloat16."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.process  # packing decodes media in a process of its own

FAMILIES = ["gpt_oss", "qwen3_vl", "molmo2", "qwen3_5", "gemma3", "gemma4-experts"]
"""Sinks, deep features, an adapter of its own, states, groups in windows, experts and capped logits."""


OFTEN = {"qwen3_5"}


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] * (name not in OFTEN)) for name in FAMILIES]
)
def test_packs_are_as_exact_as_documents_alone(
    gloo_pool: Any, made: Callable[[str], tuple[Path, Any]], family: str
) -> None:
    """Fails when something of ours takes two dtypes, or rounds what it should keep in float32."""
    from packed_models import alone, compare, load_original, whole_packs
    from packed_ranks import train_on_packs

    folder, right = made(family)
    model = load_original(folder, family).float()
    loss, packs = 0.0, []
    for batch in whole_packs(str(folder / "dataset")):
        with torch.autocast("cpu", torch.bfloat16):
            one = alone(model, batch)
        one.backward()
        loss += one.item()
        packs.append(batch.pack_id)
    gradient = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in model.parameters()])
    theirs = compare([{"packs": packs, "loss": loss, "gradient": gradient.double()}], right)
    answers = gloo_pool.run(
        train_on_packs, str(folder), [{"kind": "gather", "layout": "zigzag", "autocast": True}], "float32", None, ring=2
    )
    ours = compare([answer for [answer] in answers], right)
    assert 1e-5 < ours < 2 * theirs
