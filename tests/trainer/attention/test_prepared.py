"""Preparations for tokens before their values are known: tiles that are full, lists made elsewhere, graphs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from preshard.trainer.attention.kernels.flash_cpu import FlashCPU
from preshard.trainer.attention.kernels.flex import Flex, compiled_attention
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.tiles import list_for, list_tiles

TOKENS = [(0, 0, -1)] * 150 + [(1, 0, -1)] * 100 + [(1, 1, -1)] * 60 + [(-1, 0, -1)] * 20


@pytest.mark.parametrize("document", [0, 1, 7])
def test_tiles_of_every_document_can_be_full(document: int, make_mask: Any) -> None:
    """Fails when tiles of all documents but the first are computed with their mask, at a cost in time alone."""
    tokens = MaskTensors.from_arrays(make_mask([(document, 0, -1)] * 64))
    tiles = list_tiles(tokens, tokens, q_tile=16, k_tile=16)
    assert tiles.n_full.tolist() == [0, 1, 2, 3]


def test_flash_takes_a_list_that_was_made_elsewhere(make_mask: Any) -> None:
    """Fails when tiles listed by another process are listed again, or joined with other tokens."""
    mask = MaskTensors.from_arrays(make_mask(TOKENS))
    listed = list_for("cpu", mask, mask).alone()
    kernel, x = FlashCPU(), torch.randn(2, len(mask), 8, generator=torch.Generator().manual_seed(0))
    given = kernel.prepare(mask, mask, listed)
    assert given.columns is listed.columns
    ours, theirs = (kernel.forward(x, x, x, prepared) for prepared in (given, kernel.prepare(mask, mask)))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_flex_takes_a_list_that_was_made_elsewhere(make_mask: Any) -> None:
    """Fails when the GPU's kernel lists tiles again, while the GPU waits for the host."""
    mask = MaskTensors.from_arrays(make_mask(TOKENS))
    listed = list_for("cuda", mask, mask).alone()
    ours, theirs = (Flex().prepare(mask, mask, given).block_mask.as_tuple()[2:10] for given in (listed, None))
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    fewer = list_for("cuda", mask.at(np.arange(128)), mask).alone()
    assert len(Flex().prepare(mask, mask, fewer).block_mask.kv_indices[0, 0]) == 1, "the list decides, not the tokens"


def test_all_layers_share_one_compiled_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when each call compiles FlexAttention for itself, which takes minutes and passes every bound."""
    compiled: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda function, **_: compiled.append(function) or function)
    assert compiled_attention("of this test") is compiled_attention("of this test")
    assert len(compiled) == 1
