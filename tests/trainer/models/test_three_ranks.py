"""Families on three ranks of a pack: gradients, adapters, and the model that is exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from preshard.packer_service.runtime.progress import ConsoleProgress
from preshard.trainer.data.dataset import PackedDataset

pytestmark = [pytest.mark.slow, pytest.mark.process]  # packing decodes media in a process of its own

FAMILIES = ("glm_ocr", "lighton_ocr", "paddleocr_vl")

SETTINGS = ("seq_len=1152", "cp_sizes=[1,3]", "ring_degrees=[1,3]")


@pytest.mark.parametrize("family", FAMILIES)
def test_adapters_train_and_are_exported_as_on_documents_alone(gloo_pool: Any, tmp_path: Path, family: str) -> None:
    """Fails when an odd number of ranks loses a row or a gradient, or when the export is not the model that trained."""
    from packed_models import alone, compare, load_original, make_model, right_answers
    from packed_ranks import train_job, train_on_packs

    make_model(tmp_path, family, ConsoleProgress(), settings=SETTINGS)
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
