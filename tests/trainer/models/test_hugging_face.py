"""Unmodified Hugging Face models on packs give what they give for each document alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from preshard.packer_service.runtime.progress import ConsoleProgress
from preshard.schemas.errors import ConfigError
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.models.load import load_model
from preshard.trainer.models.packed import PackedModel

pytestmark = pytest.mark.process  # packing decodes media in a process of its own

CASES: list[tuple[str, str, str, dict[str, int], dict[str, Any]]] = [
    ("qwen3", "ring", "zigzag", {"ring": 2}, {"mlp_tiles": 3}),
    ("qwen3-windows", "gather", "zigzag", {"ring": 2}, {"recompute": "selective"}),
    ("gpt_oss", "hybrid", "zigzag", {"ulysses": 2, "ring": 2}, {"recompute": "selective"}),
    ("gemma2", "gather", "balanced_gather", {"ring": 2}, {"recompute": "selective"}),
    ("qwen3_vl", "gather", "balanced_gather", {"ring": 2}, {"recompute": "selective"}),
    ("qwen3_vl", "hybrid", "balanced_ring", {"ulysses": 2, "ring": 2}, {}),
    ("qwen2_5_vl", "gather", "balanced_gather", {"ring": 2}, {"recompute": "full", "offload": "disk"}),
    ("exaone4_5", "ring", "balanced_ring", {"ring": 4}, {"recompute": "selective"}),
    ("kimi_k25", "gather", "zigzag", {"ring": 4}, {}),
    ("molmo2", "ulysses", "contiguous", {"ulysses": 2}, {"recompute": "full"}),
    ("molmo2", "ring", "zigzag", {"ring": 2}, {}),
    ("internvl", "ring", "zigzag", {"ring": 2, "dp_shard": 2}, {}),
    ("qwen3_5", "hybrid", "balanced_ring", {"ulysses": 2, "ring": 2}, {"recompute": "full"}),
    ("qwen3_next", "gather", "zigzag", {"ring": 4}, {"recompute": "selective"}),
    ("glm4v_moe", "gather", "balanced_ring", {"ring": 2}, {}),
    ("glm_ocr", "ring", "balanced_ring", {"ring": 4}, {}),
    ("gemma4-experts", "ulysses", "zigzag", {"ulysses": 2}, {}),
    ("gemma4-small", "gather", "contiguous", {"ring": 2}, {"recompute": "full"}),
    ("gemma3", "hybrid", "balanced_gather", {"ulysses": 2, "ring": 2}, {"recompute": "selective"}),
    ("mistral3", "hybrid", "zigzag", {"ulysses": 2, "ring": 2}, {"recompute": "full"}),
    ("deepseek_v3", "hybrid", "zigzag", {"ulysses": 2, "ring": 2}, {"recompute": "selective"}),
    ("glm4_moe_lite", "gather", "balanced_gather", {"ring": 4}, {}),
    ("minicpm3", "ulysses", "contiguous", {"ulysses": 2}, {"recompute": "full"}),
    ("mimo_v2_flash", "gather", "balanced_gather", {"ring": 2}, {"recompute": "selective"}),
]
"""Each kind of attention, each layout, each family with images, and each way to take less memory. Among four ranks of a
pack some have no unit. ``grid.py`` runs the rest.
"""

Made = tuple[Path, Any]


@cache
def _loaded(folder: str) -> Any:
    return load_model(folder, dtype=torch.float64)


OFTEN = {
    "qwen3-windows-gather",
    "gpt_oss-hybrid",
    "qwen3_vl-hybrid",
    "molmo2-ulysses",
    "qwen3_next-gather",
    "gemma3-hybrid",
}
"""Windows, sinks and experts, deep features, an encoder of its own, states, and groups of images."""

LATENT = (
    "deepseek_v3",
    "glm4_moe_lite",
    "minicpm3",
    "mimo_v2_flash",
    "axk1",
    "deepseek_v2",
    "youtu",
    "mistral3-latent",
)
"""Models whose keys and values differ in width."""


@pytest.mark.parametrize(
    ("family", "kind", "layout", "degrees", "saving"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (f"{case[0]}-{case[1]}" not in OFTEN)) for case in CASES],
)
def test_packs_on_several_ranks_give_what_documents_alone_give(
    gloo_pool: Any, made: Callable[[str], Made], family: str, kind: str, layout: str, degrees: Any, saving: Any
) -> None:
    """Fails when positions, mask, features or their way to the tokens are not those of the model, when deep features
    reach another layer, or when a parameter has no gradient on a rank without a unit.
    """
    from packed_models import TEXT_MODELS, compare
    from packed_ranks import train_on_packs

    folder, right = made(family)
    listed = family != "molmo2"  # both are of the kinds that others have too
    answers = gloo_pool.run(
        train_on_packs, str(folder), [{"kind": kind, "layout": layout, "listed": listed}], "float64", saving, **degrees
    )
    ranks = [answer for [answer] in answers]
    assert compare(ranks, right) < 1e-6
    units = torch.tensor([answer["units"] for answer in ranks])
    assert (units.sum(0) > 0).any() == (family not in TEXT_MODELS)
    if degrees == {"ulysses": 2, "ring": 2}:
        assert (units == 0).any(), "every rank had a unit in every pack"


def test_random_weights_do_not_depend_on_the_dtype(made: Callable[[str], Made]) -> None:
    """Fails when random weights are drawn in the dtype, follow the ambient one, or when rotary frequencies are cut to
    bfloat16.
    """
    folder = made("qwen3")[0] / "model"
    low, high = (load_model(folder, dtype=dtype, from_scratch=True) for dtype in (torch.bfloat16, torch.float32))
    for ours, theirs in zip(low.parameters(), high.parameters(), strict=True):
        assert ours.equal(theirs.to(torch.bfloat16))
    assert low.model.rotary_emb.inv_freq.equal(high.model.rotary_emb.inv_freq)


def test_what_does_not_fit_is_said_in_one_line(made: Callable[[str], Made], tmp_path: Path) -> None:
    """Fails when a folder without weights, a model of another kind, or a dataset of another model is taken."""
    text, vision = made("qwen3")[0], made("qwen3_vl")[0]
    (tmp_path / "config.json").write_bytes((text / "model" / "config.json").read_bytes())
    with pytest.raises(ConfigError, match="holds no weights"):
        load_model(tmp_path)
    batch = next(iter(PackedDataset(vision / "dataset")))
    with pytest.raises(ConfigError, match="was packed for a qwen3_vl model and the model is qwen3"):
        PackedModel(_loaded(str(text / "model")))(batch, ContextParallel())
    with pytest.raises(ConfigError, match="deals num_heads 4 over ulysses_degree = 8 ranks, which does not divide"):
        PackedModel(_loaded(str(vision / "model")))(batch, ContextParallel(ulysses_degree=8))
    (tmp_path / "config.json").write_text('{"model_type": "gemma3n"}')
    with pytest.raises(ConfigError, match=r"'gemma3n' of config.json is not supported: its layers share"):
        load_model(tmp_path, from_scratch=True)


ON_THREE_RANKS = ("exaone4_5", "kimi_k25", "glm_ocr", "lighton_ocr", "paddleocr_vl", *LATENT)

THREE_RANKS = ("seq_len=1152", "cp_sizes=[1,3]", "ring_degrees=[1,3]")


@pytest.mark.slow
@pytest.mark.parametrize("family", ON_THREE_RANKS)
def test_adapters_train_and_are_exported_as_on_documents_alone(gloo_pool: Any, tmp_path: Path, family: str) -> None:
    """Fails when an odd number of ranks loses a row or a gradient, or when the export is not the model that trained."""
    from packed_models import alone, compare, load_original, make_model, right_answers
    from packed_ranks import train_job, train_on_packs

    make_model(tmp_path, family, ConsoleProgress(), settings=THREE_RANKS)
    right = right_answers(tmp_path, family)
    cases = [{"kind": "gather", "layout": "balanced_gather"}, {"kind": "ring", "layout": "zigzag"}]
    answers = gloo_pool.run(train_on_packs, str(tmp_path), cases, ring=3)
    for ranks in zip(*answers, strict=True):
        assert compare(ranks, right) < 1e-6

    options: dict[str, object] = {
        **{"data": str(tmp_path / "dataset"), "model": str(tmp_path / "model"), "ring": 3, "layout": "balanced_ring"},
        **{"dtype": "float64", "lr": 0.01, "min_lr": 1.0, "warmup": 0, "weight_decay": 0.0, "lora": 3},
    }
    gloo_pool.run(train_job, {**options, "steps": 2, "export": str(tmp_path / "trained" / "model")}, ring=3)
    next_step = gloo_pool.run(train_job, {**options, "steps": 3}, ring=3)[0][2]
    batch = next(batch for batch in PackedDataset(tmp_path / "dataset") if [batch.pack_id] == next_step.packs)
    with torch.no_grad():
        trained, before = (
            alone(load_original(folder, family), batch).item() / next_step.loss_weight
            for folder in (tmp_path / "trained", tmp_path)
        )
    assert trained == pytest.approx(next_step.loss, rel=1e-6)
    assert trained != pytest.approx(before, rel=1e-3)
