"""The oracle itself, against loops over the rule of the mask."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from hypothesis import given, settings

from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.attention.reference import reference_attention


def by_loops(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: Any) -> np.ndarray:
    """Attention pair by pair, from the definition of the mask."""
    out = np.zeros_like(q)
    doc, branch, group = mask.doc_ids, mask.branch_ids, mask.group_ids
    for head in range(len(q)):
        keys, values = k[head * len(k) // len(q)], v[head * len(k) // len(q)]
        for i in range(mask.seq_len):
            seen = [
                j for j in range(mask.seq_len)
                if doc[i] == doc[j] >= 0 and branch[j] in (0, branch[i]) and (j <= i or group[i] == group[j] >= 0)
            ]  # fmt: skip
            weights = [math.exp(float(q[head, i] @ keys[j]) / math.sqrt(q.shape[-1])) for j in seen]
            for weight, j in zip(weights, seen, strict=True):
                out[head, i] += weight / sum(weights) * values[j]
    return out


def test_reference_is_the_rule(packs: Any) -> None:
    # If the oracle is wrong, everything else is compared with the wrong result.
    rows_without_keys = 0

    @settings(max_examples=8, deadline=None, derandomize=True, database=None)
    @given(packs(1, 4))
    def check(pack: Any) -> None:
        nonlocal rows_without_keys
        mask = pack[0]
        rng = np.random.default_rng(0)
        q, k, v = (rng.standard_normal((n, mask.seq_len, 3)) for n in (4, 2, 2))
        out = reference_attention(*map(torch.from_numpy, (q, k, v)), MaskTensors.from_arrays(mask))
        np.testing.assert_allclose(out.numpy(), by_loops(q, k, v, mask), rtol=1e-12, atol=1e-12)
        rows_without_keys += int((mask.doc_ids < 0).sum())

    check()
    assert rows_without_keys


def test_gradients_are_those_of_small_steps(make_mask: Any) -> None:
    # Fails when the mask lets gradients of hidden keys through, or a row without keys gives NaN.
    mask = make_mask([(0, 0, -1), (0, 0, 0), (0, 0, 0), (-1, 0, -1), (0, 1, -1), (0, 2, -1)])
    tensors, rng = MaskTensors.from_arrays(mask), torch.Generator().manual_seed(0)
    inputs = [torch.randn(n, 6, 2, generator=rng, dtype=torch.float64, requires_grad=True) for n in (2, 1, 1)]
    assert torch.autograd.gradcheck(lambda q, k, v: reference_attention(q, k, v, tensors), inputs)
