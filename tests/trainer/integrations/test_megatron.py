"""Packs under Megatron's names: against its own functions where they are installed, and against their definition."""

from __future__ import annotations

from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from bridge_packages import without_packages
from torch import Tensor

from preshard.data import PackedDataset, to_bridge, to_megatron
from preshard.schemas.errors import ReaderError
from preshard.schemas.sequence import IGNORE_INDEX, PADDING_DOC

pytestmark = pytest.mark.process  # the packs are made by a job

CUT = ("tokens", "labels", "loss_mask", "position_ids")


def _causal(folder: Path, **part: Any) -> list[Any]:
    """Packs of text, by number."""
    return sorted(
        (batch for batch in PackedDataset(folder, **part) if not batch.not_causal), key=lambda batch: batch.pack_id
    )


def _partitioned(edges: Tensor, tokens: int, cp_size: int, cp_rank: int) -> Tensor:
    """Tokens by ``thd_get_partitioned_indices`` of Transformer Engine 2, which runs on GPUs alone: token by token."""
    local, found = (edges // cp_size).tolist(), []
    for token in range(tokens // cp_size):
        which = int(np.searchsorted(local, token, side="right")) - 1
        half, inside = (local[which + 1] - local[which]) // 2, token - local[which]
        chunk = cp_rank if inside < half else 2 * (cp_size - 1) - cp_rank
        found.append(inside + local[which] * cp_size + half * chunk)
    return torch.tensor(found)


def test_rooms_hold_the_documents_and_gaps_hold_none(packed: Path, whole: list[Any]) -> None:
    """Fails when edges of documents are off, or the room at a pack's end counts as a document."""
    gaps = 0
    for batch in _causal(packed):
        given, arrays = to_megatron(batch), whole[batch.pack_id].arrays
        documents, rooms = given["cu_seqlens"], given["cu_seqlens_padded"]
        assert documents.dtype == rooms.dtype == torch.int32
        assert (documents[0], rooms[0], rooms[-1]) == (0, 0, batch.seq_len)
        lengths = torch.diff(documents).tolist()
        real = np.concatenate([np.arange(start, start + n) for start, n in zip(rooms.tolist(), lengths, strict=False)])
        assert (real == np.flatnonzero(arrays["doc_ids"] != PADDING_DOC)).all()
        starts = [span["start"] for span in whole[batch.pack_id].head["documents"]]
        assert set(starts) <= set(rooms.tolist())
        assert given["max_seqlen"].tolist() == [int(torch.diff(rooms).max())]
        gaps += lengths.count(0)
        for name, stored in zip(CUT, ("tokens", "labels", "loss_weights", "position_ids"), strict=True):
            assert np.array_equal(given[name].numpy().reshape(-1), arrays[stored].reshape(-1)), name
    assert gaps > 0


@pytest.mark.parametrize("cp_size", [1, 2, 4])
def test_a_ranks_part_is_what_megatron_cuts_of_a_whole_pack(
    packed: Path, cp_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when zigzag's slices are not those that Megatron's attention takes them for, or edges become a rank's own.

    With megatron-core installed its own function cuts; without, the definition of the kernel that it calls.
    """
    has_core = find_spec("megatron") is not None and find_spec("megatron.core") is not None
    for rank in range(cp_size):
        parts = _causal(packed, layout="zigzag", ring_degree=cp_size, cp_rank=rank)
        assert len(parts) > 1
        for batch, part in zip(_causal(packed), parts, strict=True):
            right, given = to_megatron(batch), to_megatron(part)
            edges = {name: right[name] for name in ("cu_seqlens", "cu_seqlens_padded", "max_seqlen")}
            cut = {name: right[name] for name in CUT}
            if has_core:
                utils = pytest.importorskip("megatron.core.utils")
                monkeypatch.setattr(utils, "tex", SimpleNamespace(thd_get_partitioned_indices=_partitioned))
                monkeypatch.setattr(utils, "is_te_min_version", lambda _: True)
                cut, told = utils.get_thd_batch_on_this_cp_rank(cut, **edges, cp_size=cp_size, cp_rank=rank)
                assert torch.equal(told.cu_seqlens_q_padded, given["cu_seqlens_padded"])
                assert (told.qkv_format, told.max_seqlen_q) == ("thd", given["max_seqlen"].item())
            elif cp_size > 1:
                index = _partitioned(edges["cu_seqlens_padded"], batch.seq_len, cp_size, rank)
                cut = {name: value[:, index] for name, value in cut.items()}
            assert all(torch.equal(given[name], value) for name, value in {**cut, **edges}.items())


def test_edges_of_a_ranks_own_slice(packed: Path) -> None:
    """Fails when a ring that is given a rank's own edges would cut its slice inside of a document."""
    for rank in range(4):
        for batch in _causal(packed, layout="zigzag", ring_degree=4, cp_rank=rank):
            edges, document = batch.cu_seqlens_local.tolist(), batch.doc_ids[batch.positions]
            changes = (torch.nonzero(torch.diff(document))[:, 0] + 1).tolist()
            inside = {at for at in changes if PADDING_DOC not in document[at - 1 : at + 1].tolist()}
            assert inside <= set(edges)
            assert (edges[0], edges[-1], len(edges)) == (0, len(batch), len(batch.cu_seqlens_padded))
            for start, end in pairwise(edges):
                assert len(set(document[start:end].tolist()) - {PADDING_DOC}) <= 1


def test_slices_that_ranks_do_not_share_equally_are_refused(packed: Path) -> None:
    """Fails when Megatron's attention would take slices of another layout for zigzag's, or Bridge cut a slice again."""
    balanced = _causal(packed, layout="balanced_ring", ring_degree=2)[0]
    with pytest.raises(ReaderError, match=r"of balanced_ring at ring_degree 2 for 2 ranks.*zigzag, ring_degree 2"):
        to_megatron(balanced)
    ulysses = _causal(packed, layout="zigzag", ring_degree=2, ulysses_degree=2)[0]
    with pytest.raises(ReaderError, match="zigzag at ring_degree 2 for 4 ranks"):
        to_megatron(ulysses)
    with pytest.raises(ReaderError, match="has 1024 of its 2048 tokens, and Bridge cuts whole packs itself"):
        to_bridge(_causal(packed, layout="zigzag", ring_degree=2)[0])


@pytest.fixture
def bridge(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """Bridge's builder of packed batches, and its step's reader of them."""
    without_packages(monkeypatch, "", ".data", ".data.datasets", ".training", ".training.utils")
    sft = pytest.importorskip("megatron.bridge.data.datasets.sft")
    read = pytest.importorskip("megatron.bridge.training.utils.packed_seq_utils")
    return sft.GPTSFTPackedDataset, read.get_packed_seq_params


def test_keys_and_values_are_those_of_bridges_own_builder(packed: Path, whole: list[Any], bridge: Any) -> None:
    """Fails when a key, shape, type or value differs from what Bridge collates of the same documents."""
    builder, read = bridge
    gaps = 0
    for batch in _causal(packed):
        arrays, rooms = whole[batch.pack_id].arrays, batch.cu_seqlens_padded.tolist()
        pad = int(batch.tokens[-1])
        assert batch.doc_ids[-1] == PADDING_DOC
        item: dict[str, list[Any]] = {"input_ids": [], "loss_mask": [], "seq_boundaries": [0]}
        documents = rooms[: len(rooms) - int(batch.document_lengths[-1] == 0)]  # the gap at the end is Bridge's to add
        gaps += len(rooms) - len(documents)
        for start, end in pairwise(documents):
            # of each sequence Bridge drops the last token, which is the label of the one before it
            item["input_ids"] += [*arrays["tokens"][start:end].tolist(), pad]
            item["loss_mask"] += [*(arrays["loss_weights"][start:end] > 0).tolist(), False]
            item["seq_boundaries"].append(len(item["input_ids"]))
        made = object.__new__(builder)
        made.tokenizer = SimpleNamespace(eos_id=pad)
        made.answer_only_loss = made.pad_to_max_length = made.return_cu_seqlen = True
        made.max_seq_length, made._pad_seq_to_mult, made.pad_cu_seqlens = batch.seq_len, 16, False
        right, given = made.collate_fn([item]), to_bridge(batch)
        assert set(right) - set(given) == {"token_count"}, "which no step of Bridge reads"
        counted = right["loss_mask"] > 0
        for name, value in given.items():
            assert value.shape == right[name].shape, name
            same = counted if name == "labels" else torch.ones_like(value, dtype=torch.bool)
            if name == "position_ids":
                same = batch.doc_ids[None] != PADDING_DOC
            assert torch.equal(value[same].to(right[name].dtype), right[name][same]), name
            assert value.dtype == right[name].dtype or name == "loss_mask", name
        assert (given["labels"][~counted] == IGNORE_INDEX).all()
        ours, theirs = read(given), read(right)
        for name in ("cu_seqlens_q", "cu_seqlens_q_padded", "max_seqlen_q"):
            assert torch.equal(getattr(ours, name), getattr(theirs, name)), name
    assert gaps > 0
