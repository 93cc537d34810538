"""Documents with several annotations give what each annotation gives alone, after what they share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.models.interface import register_attention
from preshard.trainer.models.load import load_model
from preshard.trainer.models.packed import PackedModel


def test_an_annotation_sees_what_is_shared_and_no_other(lessons: Path, tmp_path: Path) -> None:
    """Fails when an annotation's tokens see another annotation, count positions through it, or lose their image."""
    from packed_models import alone, load_original

    register_attention()
    built: Any = load_model(lessons.with_name("model"), dtype=torch.float64, from_scratch=True)
    built.save_pretrained(tmp_path / "model")
    original = load_original(tmp_path, "qwen3_vl")
    batch = max(PackedDataset(lessons), key=lambda batch: int(batch.branch_ids.max()) * bool(batch.units))
    assert batch.branch_ids.max() > 2
    assert batch.units
    expected = alone(original, batch)
    expected.backward()
    packed = PackedModel(built)
    found = packed(batch, ContextParallel())
    found.backward()
    torch.testing.assert_close(found, expected, rtol=1e-7, atol=0)
    norm = torch.stack([p.grad.norm() for p in original.parameters()]).norm()
    for (name, ours), theirs in zip(built.named_parameters(), original.parameters(), strict=True):
        assert ours.grad is not None
        assert (ours.grad - theirs.grad).norm() / norm < 1e-6, name
