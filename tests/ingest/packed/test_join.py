"""Pieces joined again are the document that was split, whatever the cuts went through."""

from __future__ import annotations

from collections import Counter
from dataclasses import fields, replace

import numpy as np
import pytest

from preshard.packer_service.ingest.oversize import fit
from preshard.packer_service.ingest.packed.pieces import join_pieces
from preshard.packer_service.packs.rendered import RenderedDocument, document_positions, groups_of_units, shifted_labels
from preshard.packer_service.packs.units import Units


def made_document(seed: int, *, annotated: bool, axes: int) -> RenderedDocument:
    """Texts with images and videos between them, loss here and there, and annotations behind a prefix if asked for."""
    draw = np.random.default_rng(seed)
    edges, media, branches, loss, unit_ids = [], [], [], [], []
    medium = -1
    for branch in range(4 if annotated else 1):
        for _ in range(draw.integers(1, 4)):
            if not (annotated and branch == 0) or not edges:
                for text_loss in (False, True):
                    loss += [text_loss] * int(draw.integers(1, 9))
                    unit_ids += [-1] * (len(loss) - len(unit_ids))
            medium += 1
            for _ in range(draw.integers(1, 4)):
                start = len(loss)
                unit_ids += [-1, *[len(edges)] * 4]
                loss += [False] * 5
                edges.append((start, len(loss)))
                media.append(medium)
            loss += [not (annotated and branch == 0)] * 3
            unit_ids += [-1] * 3
        branches += [branch] * (len(loss) - len(branches))
    n, count = len(loss), len(edges)
    branch_ids, ids = np.array(branches, np.int32), np.array(unit_ids, np.int32)
    if annotated:
        loss = [carries and branch > 0 for carries, branch in zip(loss, branches, strict=True)]
    tokens = draw.integers(0, 1000, n).astype(np.int32)
    labels = shifted_labels(tokens, np.array(loss), branch_ids)
    units = replace(
        Units.none(),
        kinds=np.ones(count, np.int64),
        edges=np.array(edges, np.int64),
        grids=np.tile(np.array([1, 2, 2], np.int64), (count, 1)),
        patches=np.full(count, 4),
        rows=np.full(count, 4),
        crops=np.ones(count, np.int64),
        loads=draw.integers(1, 99, count),
        media=np.array(media, np.int64),
        time_steps=draw.choice([0.5, 1.0, 2.5], count),
        numbers=np.arange(count),
    )
    return RenderedDocument(
        tokens=tokens,
        labels=labels,
        loss_weights=np.where(labels < 0, 0, 1 / np.sqrt(3) if annotated else 1).astype(np.float32),
        position_ids=document_positions(branch_ids, ids, units, axes=axes),
        branch_ids=branch_ids,
        group_ids=groups_of_units(ids, "within_image"),
        unit_ids=ids,
        units=units,
        n_shared=int(np.searchsorted(branch_ids, 1)) if annotated else 0,
        n_branches=3 if annotated else 0,
        media=tuple(range(count)),
    )


@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize("annotated", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_a_split_document_joins_to_what_it_was(seed: int, annotated: bool, axes: int) -> None:
    """Fails when a label, weight, position, unit or image's number at a cut is not what it was before."""
    whole = made_document(seed, annotated=annotated, axes=axes)
    branches = np.bincount(whole.branch_ids, minlength=1)
    longest = int(branches[0] + branches[1:].max(initial=0)) if annotated else 24
    pieces = fit(whole, seq_len=longest, max_images=None, oversize="split")
    if any(piece.truncated for piece in pieces):
        pytest.skip("a part without loss is in no piece")
    found = join_pieces(pieces, bidirectional="within_image")
    for field in fields(RenderedDocument):
        if field.name != "units":
            assert np.array_equal(getattr(found, field.name), getattr(whole, field.name)), field.name
    for field in fields(Units):
        assert np.array_equal(getattr(found.units, field.name), getattr(whole.units, field.name)), field.name


def test_cuts_went_through_labels_and_videos() -> None:
    """Fails when the documents above no longer try what a join is for."""
    found: Counter[str] = Counter()
    for seed in range(40):
        whole = made_document(seed, annotated=False, axes=1)
        for piece in fit(whole, seq_len=24, max_images=None, oversize="split"):
            found["labels"] += piece.label_cut
            found["videos"] += piece.medium_cut
    assert found["labels"] > 5
    assert found["videos"] > 5
