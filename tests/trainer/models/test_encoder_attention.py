"""Attention within images that lie side by side: one call for all of a size, equal to a call for each."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from preshard.schemas.model.families import FAMILIES
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.families.family import load_family
from preshard.trainer.models import interface
from preshard.trainer.models.load import load_model
from preshard.trainer.models.packed import PackedModel

SIDE_BY_SIDE = [
    "qwen3_vl",
    "qwen2_5_vl",
    "glm4v_moe",
    "mistral3",
    "lighton_ocr",
    "paddleocr_vl",
    "exaone4_5",
    "kimi_k25",
]
SELDOM = ("lighton_ocr", "paddleocr_vl", "exaone4_5", "kimi_k25")


def test_these_are_the_encoders() -> None:
    """Fails when a family's encoder is compared with nothing below."""
    families = {name: load_family(name) for name in FAMILIES}
    compared = {families[name].encode for name in SIDE_BY_SIDE}
    assert {family.encode for family in families.values() if family.side_by_side} == compared


@pytest.mark.process  # the packs are made by a job
@pytest.mark.parametrize(
    "family",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in SELDOM)) for name in SIDE_BY_SIDE],
)
def test_features_are_those_of_a_call_for_each_image(
    folder_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """Fails when a patch sees another image, images change places, each is a call again, or each layer sorts them."""
    folder = folder_of(family)
    packed = PackedModel(load_model(folder / "model", from_scratch=True, dtype=torch.float64))
    names = ("visual", "vision_tower", "vision_encoder")
    encoder = next(getattr(packed.core, name) for name in names if hasattr(packed.core, name))
    batch = max((pack for pack in PackedDataset(folder / "dataset")), key=lambda pack: len(pack.units))
    assert len({tuple(unit.grid) for unit in batch.units}) > 1
    batch, calls, sorts = batch.with_levels(), [], []
    attend, sort = interface.scaled_dot_product_attention, interface.sort_by_size

    def counted(query: Tensor, *args: Any, **named: Any) -> Tensor:
        calls.append(len(query))
        return attend(query, *args, **named)

    monkeypatch.setattr(interface, "scaled_dot_product_attention", counted)
    monkeypatch.setattr(interface, "sort_by_size", lambda *given: sorts.append(1) or sort(*given))
    found = {}
    for way in (interface.ENCODER, "sdpa"):
        for module in encoder.modules():
            if hasattr(module, "config"):
                module.config._attn_implementation = way
        features = packed._encode(batch, packed._vision_inputs(batch))
        features.square().sum().backward()
        found[way] = features.detach(), [each.grad for each in encoder.parameters()]
        packed.zero_grad()
    torch.testing.assert_close(found[interface.ENCODER], found["sdpa"], rtol=1e-6, atol=1e-9)
    assert max(calls) > 1
    assert len(sorts) == (2 if family in ("qwen2_5_vl", "exaone4_5") else 1), "one of windows, and one of images"


@pytest.mark.parametrize("key_heads", [4, 2])
def test_each_image_alone_and_few_calls(monkeypatch: pytest.MonkeyPatch, key_heads: int) -> None:
    """Fails when rows of images of one size are joined wrongly, an image without patches is taken for one, or heads get
    keys that others share.
    """
    generator = torch.Generator().manual_seed(0)
    sizes = [7, 3, 0, 7, 1, 3, 7]
    edges = np.cumsum([0, *sizes])
    heads = (4, key_heads, key_heads)
    q, k, v = (torch.randn(count, sum(sizes), 5, generator=generator, dtype=torch.float64) for count in heads)
    calls: list[int] = []
    attend = interface.scaled_dot_product_attention
    monkeypatch.setattr(
        interface, "scaled_dot_product_attention", lambda *args, **named: calls.append(1) or attend(*args, **named)
    )
    for kind in (torch.int32, torch.int64):
        found, _ = interface.encoder_attention(
            torch.nn.Identity(), q[None], k[None], v[None], None,
            scaling=0.3, cu_seq_lens_q=torch.from_numpy(edges).to(kind), max_length_q=7,
        )  # fmt: skip
        parts = [slice(begin, end) for begin, end in pairwise(edges)]
        right = torch.cat([attend(q[:, at], k[:, at], v[:, at], scale=0.3, enable_gqa=True) for at in parts], dim=1)
        torch.testing.assert_close(found[0].transpose(0, 1), right, rtol=1e-12, atol=1e-12)
    assert len(calls) == 2 * 3
