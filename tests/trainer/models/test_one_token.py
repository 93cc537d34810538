"""A token of one document reaches no hidden state of another, however a pack is split.

Packing under context parallelism is refused by TRL for want of this (https://github.com/huggingface/trl/issues/6843).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from packed_ranks import experts_in_float64
from thread_ranks import run_ranks
from torch import Tensor

from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.models.load import load_model
from preshard.trainer.models.packed import PackedModel

pytestmark = pytest.mark.process  # packing decodes media in a process of its own

FAMILIES = (
    *("qwen3", "qwen3-windows", "gpt_oss", "gemma2", "qwen3_vl", "qwen3_5", "gemma3"),
    *("glm_ocr", "lighton_ocr", "paddleocr_vl", "exaone4_5", "kimi_k25"),
    *("deepseek_v3", "glm4_moe_lite", "minicpm3", "mimo_v2_flash", "axk1", "deepseek_v2", "youtu", "mistral3-latent"),
)
"""Full attention, windows, sinks, caps, images and deep features, layers with a state, groups within windows, the
families for text recognition, grids under one axis of positions, and values of another width than keys."""

OFTEN = ("qwen3-windows", "gpt_oss", "gemma3")

SPLITS = [("ring", 1, 1), ("ring", 1, 2), ("gather", 1, 4), ("ulysses", 2, 1), ("hybrid", 2, 2)]
LAYOUTS = ("contiguous", "zigzag", "balanced_ring", "balanced_gather")


@cache
def _loaded(folder: str) -> Any:
    return experts_in_float64(load_model(folder, dtype=torch.float64))


def _hidden(model: Any, batches: list[RankBatch], kind: str, ulysses: int, ring: int) -> Tensor:
    """Hidden states of a pack's tokens, from ranks of which each has its own copy of the model."""
    models = [copy.deepcopy(model) for _ in batches]

    def on_rank(cp: ContextParallel) -> tuple[Tensor, Tensor]:
        packed, batch, found = PackedModel(models[cp.cp_rank]), batches[cp.cp_rank], []
        language = packed.core if packed.family is None else packed.core.language_model
        language.register_forward_hook(lambda _module, _given, made: found.append(made.last_hidden_state[0]))
        with torch.no_grad():
            packed(batch, cp, attention=kind, features="route")
        return batch.positions, found[0]

    parts = run_ranks(ulysses, ring, on_rank)
    places, hidden = (torch.cat(each) for each in zip(*parts, strict=True))
    return hidden[torch.argsort(places)]


def _changed(batch: RankBatch, place: int) -> RankBatch:
    """The same with another token at one place of the pack, if this rank holds it."""
    return replace(batch, tokens=torch.where(batch.positions == place, batch.tokens ^ 1, batch.tokens))


@pytest.mark.parametrize(
    "family", [pytest.param(name, marks=[pytest.mark.slow] * (name not in OFTEN)) for name in FAMILIES]
)
def test_a_token_reaches_no_other_document(made: Callable[[str], tuple[Path, Any]], family: str) -> None:
    """Fails when a changed token changes any bit of a hidden state outside its document, of another annotation of it
    or of a token that does not see it, or changes no token that does.
    """
    folder, _ = made(family)
    model, probed = _loaded(str(folder / "model")), 0
    for number, (kind, ulysses, ring) in enumerate(SPLITS, FAMILIES.index(family)):
        split: dict[str, Any] = {"ulysses_degree": ulysses, "ring_degree": ring}
        split["layout"] = LAYOUTS[number % len(LAYOUTS)]
        batches = [
            next(iter(PackedDataset(folder / "dataset", cp_rank=rank, **split))) for rank in range(ulysses * ring)
        ]
        docs, branches, groups = batches[0].doc_ids, batches[0].branch_ids, batches[0].group_ids
        text = (docs >= 0) & (groups < 0)
        text[batches[0].pool_positions] = False
        before = _hidden(model, batches, kind, ulysses, ring)
        for doc in docs.unique().tolist():
            own = torch.nonzero(text & (docs == doc)).flatten()
            if len(own) < 3:
                continue
            place = int(own[len(own) // 3])
            changed = [_changed(batch, place) for batch in batches]
            differs = (_hidden(model, changed, kind, ulysses, ring) != before).any(1)
            sees = (docs == doc) & (torch.arange(len(docs)) >= place)
            sees &= (branches[place] == 0) | (branches == branches[place])
            assert differs[place], (kind, doc)
            assert not (differs & ~sees).any(), (kind, doc, torch.nonzero(differs & ~sees).flatten().tolist()[:5])
            assert (differs & sees).sum() > 1, (kind, doc)
            probed += 1
    assert probed > len(SPLITS)
