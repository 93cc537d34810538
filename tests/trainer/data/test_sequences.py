"""Sequences for kernels of variable length, against the mask's own definition."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from preshard.schemas.errors import ReaderError
from preshard.schemas.mask import dense_mask
from preshard.schemas.sequence import MaskArrays
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.extra.sequences import find_sequences


def _mask(doc: list[int], branch: list[int] | None = None, group: list[int] | None = None) -> MaskArrays:
    arrays = [doc, branch or [0] * len(doc), group or [-1] * len(doc)]
    return MaskArrays(**dict(zip(("doc_ids", "branch_ids", "group_ids"), np.array(arrays, np.int32), strict=True)))


def _is_causal(mask: MaskArrays, edges: np.ndarray) -> bool:
    """Whether causal attention inside the sequences gives every document's token the keys that the mask gives it."""
    which = np.searchsorted(edges, np.arange(mask.seq_len), side="right")
    causal = np.tril(which[:, None] == which[None, :])
    real = mask.doc_ids >= 0
    return bool((causal == dense_mask(mask))[real].all())


def test_every_small_mask_is_told_right() -> None:
    """Fails when a mask is taken for causal that is not, or refused though it is: all masks of 3 tokens."""
    told = set()
    ids = list(itertools.product((0, 1, 2), repeat=3))
    for doc in ([0, 0, 0], [0, 0, 1], [0, -1, 1], [-1, 3, 3]):
        for branch, group in itertools.product(ids, ids):
            mask = _mask(doc, list(branch), [each - 1 for each in group])
            found = find_sequences(mask)
            assert (not found.not_causal) == _is_causal(mask, found.edges), (doc, branch, group)
            told.add(found.not_causal)
    assert len(told) == 3, "causal, and two reasons"


def test_a_document_in_several_ranges_is_refused() -> None:
    """Fails when the parts of a scattered document become sequences that do not see each other."""
    assert "several ranges" in find_sequences(_mask([0, 1, 0])).not_causal


def test_padding_has_sequences_of_its_own() -> None:
    """Fails when padding joins the document before it, whose tokens a kernel would then show to it and count."""
    found = find_sequences(_mask([0, 0, 0, -1, 1, 1, -1, -1]))
    assert found.edges.tolist() == [0, 3, 4, 6, 8]
    assert found.edges.dtype == np.int32
    assert found.longest == 3
    assert not found.not_causal


def test_a_batch_gives_them_or_says_why_not(packed: Path, whole: list[Any]) -> None:
    """Fails when a pack with images or annotations gives a kernel another mask, or one of text alone is refused."""
    reasons = set()
    for batch in PackedDataset(packed, ulysses_degree=2, cp_rank=1):
        arrays = whole[batch.pack_id].arrays
        reasons.add(batch.not_causal)
        if batch.not_causal:
            with pytest.raises(ReaderError, match=rf"cu_seqlens of pack {batch.pack_id}.*both directions|branches"):
                batch.cu_seqlens  # noqa: B018
            for name in ("max_seqlen", "cu_seqlens_padded", "document_lengths"):
                with pytest.raises(ReaderError, match=name):
                    getattr(batch, name)
            continue
        edges = batch.cu_seqlens.numpy()
        assert edges[0] == 0
        assert edges[-1] == batch.seq_len
        assert batch.max_seqlen == np.diff(edges).max()
        assert (np.diff(arrays["doc_ids"])[edges[1:-1] - 1] != 0).all()
        rooms, lengths = batch.cu_seqlens_padded.numpy(), batch.document_lengths.numpy()
        assert rooms.dtype == lengths.dtype == np.int32
        assert (rooms[0], rooms[-1]) == (0, batch.seq_len)
        real = np.concatenate([np.arange(room, room + n) for room, n in zip(rooms, lengths, strict=False)])
        assert len(rooms) == len(lengths) + 1
        assert (real == np.flatnonzero(arrays["doc_ids"] >= 0)).all()
        assert (len(batch), batch.tensors["tokens"] is batch.tokens) == (batch.seq_len // 2, True)
    assert len(reasons) == 3, "text alone, images, annotations"


def test_every_rank_knows_the_packs_loss_weight(packed: Path) -> None:
    """Fails when a rank gets its own part's sum: the loss would be divided by too little."""
    ranks = [list(PackedDataset(packed, ulysses_degree=2, ring_degree=2, cp_rank=rank)) for rank in range(4)]
    for step in zip(*ranks, strict=True):
        together = sum(batch.loss_weights.double().sum().item() for batch in step)
        assert all(batch.total_loss_weight == pytest.approx(together, rel=1e-12) for batch in step)
        assert together > 0
