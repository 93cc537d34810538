"""Whole packs through unmodified models, by the arguments of padding-free training."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from repacked import packed
from transformers_alone import load_transformers

from preshard.data import PackedDataset, to_varlen
from preshard.schemas.errors import ReaderError

pytestmark = pytest.mark.process  # the packs are made by a job


def _read(folder: Path, **degrees: int) -> Any:
    return sorted(PackedDataset(str(folder / "dataset"), **degrees), key=lambda batch: batch.pack_id)


@pytest.mark.parametrize(
    ("family", "shifted"),
    [
        ("qwen3", "labels"),
        ("qwen3_vl", "shift_labels"),
        pytest.param("qwen2_5_vl", "labels", marks=pytest.mark.slow),
    ],
)
def test_an_unmodified_model_gives_what_documents_alone_give(
    made: Callable[..., Any], family: str, shifted: str
) -> None:
    """Fails when a document would see its neighbours, positions or labels were one off, or pictures in other order."""
    from packed_models import load_original

    folder, right = made(family, annotated=False)
    model = load_original(folder, family)
    packs = _read(folder)
    assert max(len(batch.cu_seqlens) for batch in packs) > 3
    for batch in packs:
        given = to_varlen(batch)
        given = {name: x.double() if name.startswith("pixel") else x for name, x in given.items()}
        if shifted == "labels":
            del given["shift_labels"]
        model.zero_grad()
        loss = model(**given, num_items_in_batch=torch.tensor(1.0, dtype=torch.float64)).loss
        loss.backward()
        gradient = torch.cat(
            [(p.grad if p.grad is not None else torch.zeros_like(p)).flatten() for p in model.parameters()]
        )
        assert loss.item() == pytest.approx(right.losses[batch.pack_id], rel=1e-6)
        assert (gradient - right.gradients[batch.pack_id]).norm() < 1e-6 * right.gradients[batch.pack_id].norm()


def test_edges_and_numbers_of_sequences_agree(made: Callable[..., Any]) -> None:
    """Fails when kernels of state (``seq_idx``) and of attention (``cu_seq_lens_q``) would see other sequences."""
    folder, _ = made("qwen3", annotated=False)
    for batch in _read(folder):
        given = to_varlen(batch, with_labels=False)
        assert "labels" not in given
        lengths = torch.bincount(given["seq_idx"][0])
        assert torch.equal(torch.diff(given["cu_seq_lens_q"]).long(), lengths)
        assert given["max_length_q"] == lengths.max() == given["max_length_k"]
        assert given["seq_idx"].dtype == given["cu_seq_lens_k"].dtype == torch.int32


def test_what_sequences_cannot_express_is_refused(made: Callable[..., Any]) -> None:
    """Fails when a mask, a part of a pack, or weights would be lost without a word."""
    folder, _ = made("qwen3", annotated=False)
    with pytest.raises(ReaderError, match="of which this rank has"):
        to_varlen(_read(folder, ulysses_degree=2, cp_rank=1)[0])
    batch = _read(folder)[0]
    with pytest.raises(ReaderError, match=r"weights from 0\.5 to 0\.5.*with_labels=False"):
        to_varlen(replace(batch, loss_weights=batch.loss_weights / 2))
    assert "labels" not in to_varlen(replace(batch, loss_weights=batch.loss_weights / 2), with_labels=False)
    with pytest.raises(ReaderError, match="cannot be expressed"):
        to_varlen(replace(batch, not_causal="documents have annotations"))


def test_rows_of_several_sequences_and_their_columns(tmp_path: Path) -> None:
    """Fails when sequences of a row see each other, a column is lost or shifted, or a room is taken for a sequence."""
    (tmp_path / "s").mkdir()
    rows = [
        {"id": "two", "input_ids": [1, 5, 6, 1, 7], "seq_lengths": [3, 2], "logprobs": [None, -1, -2, None, -3]},
        {"id": "one", "input_ids": [1, 8, 9], "logprobs": [None, -4, -5]},
    ]
    (tmp_path / "s" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    settings = ["seq_len=64", "block_size=16", "cp_sizes=[1]", "ring_degrees=[1]", "token_columns={logprobs: float32}"]
    [batch] = PackedDataset(str(packed(tmp_path / "s", tmp_path / "out", [*settings, "layouts=[contiguous]"])))
    model = SimpleNamespace(config=load_transformers().AutoConfig.for_model("qwen3"))
    given = to_varlen(batch, model=model, with_columns=True)
    tokens, edges = given["input_ids"][0], given["cu_seq_lens_q"].tolist()
    found = {
        tuple(tokens[a:b].tolist()): (
            given["position_ids"][0, a:b].tolist(),
            given["columns.logprobs"][0, a:b].tolist(),
        )
        for a, b in pairwise(edges)
        if tokens[a] == 1
    }
    assert found == {
        (1, 5, 6): ([0, 1, 2], [-1, -2, 0]),
        (1, 7): ([0, 1], [-3, 0]),
        (1, 8, 9): ([0, 1, 2], [-4, -5, 0]),
    }
    assert "columns.logprobs" not in to_varlen(batch, model=model)
    for name in ("cu_seqlens_padded", "document_lengths", "cu_seqlens_local"):
        with pytest.raises(ReaderError, match="a room for each document"):
            getattr(batch, name)
