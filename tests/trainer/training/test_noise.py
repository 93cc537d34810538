"""Dropout in training: the same whenever a step is done, and none where answers are compared with a reference."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lessons import TEXT_SETTINGS, VOCABULARY
from packed_ranks import train_job

from preshard.trainer.core.step import seed_noise

OPT = {
    **{"model_type": "opt", "architectures": ["OPTForCausalLM"], "hidden_size": 32, "word_embed_proj_dim": 32},
    **{"num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48, "max_position_embeddings": 512},
    **{"do_layer_norm_before": True, "activation_function": "relu", "tie_word_embeddings": True},
    **{"pad_token_id": 1, "bos_token_id": 2, "dropout": 0.1, "attention_dropout": 0.0, "layerdrop": 0.0},
}
"""A model with dropout in its blocks, by a function and not by a module."""


def make_noisy(folder: Path, progress: Any) -> None:
    """``folder/model``, and packs of texts and of pairs for it."""
    from preshard.packer_service.config import load_config
    from preshard.packer_service.demo.model import write_model_folder
    from preshard.packer_service.job.pack import pack
    from preshard.packer_service.runtime.executors import PlainExecutor

    write_model_folder(folder / "model", "qwen3", vocabulary=VOCABULARY)
    stored = json.loads((folder / "model" / "config.json").read_text())
    config = {**OPT, **{name: stored[name] for name in ("vocab_size", "eos_token_id")}}
    (folder / "model" / "config.json").write_text(json.dumps(config))
    texts = [{"id": f"text-{i}", "text": f"{i} is said again. " * (5 + 7 * i % 37)} for i in range(10)]
    pairs = [
        {"id": f"{i}", "prompt": f"{i}: why? ", "chosen": "It is. " * 9, "rejected": "No. " * i} for i in range(1, 4)
    ]
    for name, rows in (("texts", texts), ("pairs", pairs)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        settings = load_config(None, [*TEXT_SETTINGS, f"model={folder / 'model'}"])
        pack([str(folder / f"{name}.jsonl")], str(folder / name), settings, PlainExecutor(), progress)


@pytest.fixture(scope="module")
def noisy(made_once: Any, progress: Any) -> Path:
    """The folder of :func:`make_noisy`. Read only."""
    return Path(made_once("noisy", lambda folder: make_noisy(folder, progress)))


def options(noisy: Path, data: str, **more: object) -> dict[str, object]:
    given = {"data": str(noisy / data), "model": str(noisy / "model"), "from_scratch": True, "dtype": "float64"}
    return {**given, "steps": 3, "lr": 0.003, "warmup": 0, **more}


def test_a_step_draws_the_same_whenever_it_is_done(gloo_pool: Any, noisy: Path, tmp_path: Path) -> None:
    """Fails when the same command gives other losses, a resumed run other ones than a whole one, recomputation draws
    anew, or ``--seed`` has no effect on dropout; or when there is no dropout.
    """

    def losses(ring: int = 1, **more: object) -> list[float]:
        found = gloo_pool.run(train_job, options(noisy, "texts", ring=ring, **more), ring=ring)[0]
        return [value for figures in found for value in (figures.loss, figures.grad_norm)]

    whole = losses(ring=2, checkpoint=str(tmp_path / "whole"), save_every=1)
    torch.manual_seed(5)  # what else the process has drawn
    assert losses(ring=2) == whole
    assert losses(ring=2, recompute="full") == pytest.approx(whole, rel=1e-9)
    shutil.copytree(tmp_path / "whole" / "step-00000002", tmp_path / "again" / "step-00000002")
    assert losses(ring=2, checkpoint=str(tmp_path / "again"), resume=True) == whole[4:]
    assert abs(losses()[0] / whole[0] - 1) > 1e-6, "one rank draws other numbers than two"


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_preferences_are_learnt_without_noise(gloo_pool: Any, noisy: Path, recompute: str) -> None:
    """Fails when the policy has dropout, which its reference has not: the first margin is 0."""
    given = options(noisy, "pairs", loss="dpo", recompute=recompute, eval_data=str(noisy / "pairs"), eval_every=1)
    found = gloo_pool.run(train_job, given)[0]
    assert found[0].loss == pytest.approx(np.log(2), rel=1e-9)
    assert found[0].rewards["margins"] == pytest.approx(0, abs=1e-9)
    assert found[1].loss == pytest.approx(found[0].eval_loss, rel=1e-9), "an evaluation turns noise on"
    assert found[1].loss < found[0].loss


def test_ranks_and_steps_draw_their_own() -> None:
    """Fails when two ranks, steps or seeds begin with the same numbers, so that their tokens lose the same features."""
    drawn = set()
    for place in ((0, 1, 0), (0, 1, 1), (0, 2, 0), (1, 1, 0)):
        seed_noise(*place)
        drawn.add(torch.rand(()).item())
    assert len(drawn) == 4
