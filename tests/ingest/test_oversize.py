"""Documents above a budget: cut between units and annotations, with every lost token counted."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_units import made_units

from preshard.packer_service.ingest.oversize import fit
from preshard.packer_service.packs.rendered import RenderedDocument, branch_positions, groups_of_units, shifted_labels
from preshard.schemas.errors import DocumentError

X = -100


def document(
    units: list[tuple[int, int]], length: int, shared: int = 0, branches: tuple[int, ...] = ()
) -> RenderedDocument:
    """Tokens 0, 1, 2, ... with loss outside units; units as (start, crops), with two tokens per crop."""
    total = shared + sum(branches) if branches else length
    branch_ids = (
        np.repeat(np.arange(len(branches) + 1, dtype=np.int32), [shared, *branches])
        if branches
        else np.zeros(total, np.int32)
    )
    unit_ids = np.full(total, -1, np.int32)
    for number, (start, crops) in enumerate(units):
        unit_ids[start : start + 2 * crops] = number
    tokens = np.arange(total, dtype=np.int32)
    labels = shifted_labels(tokens, (unit_ids < 0) & (branch_ids >= (1 if branches else 0)), branch_ids)
    return RenderedDocument(
        tokens=tokens,
        labels=labels,
        loss_weights=(labels != X).astype(np.float32),
        position_ids=branch_positions(branch_ids)[None],
        branch_ids=branch_ids,
        group_ids=groups_of_units(unit_ids, "within_image"),
        unit_ids=unit_ids,
        units=made_units([(start, start + 2 * crops) for start, crops in units], [crops for _, crops in units]),
        n_shared=shared if branches else 0,
        n_branches=len(branches),
    )


def test_what_fits_is_untouched() -> None:
    """Fails when a document exactly as long as a pack is cut or refused."""
    whole = document([], 8)
    [piece] = fit(whole, seq_len=8, max_images=None, oversize="reject")
    assert piece is whole
    assert piece.truncated == 0


@pytest.mark.parametrize(
    ("given", "limits", "code", "message"),
    [
        (document([], 9), (8, None), "too_long", "9 tokens, more than seq_len 8; seq_len=12 holds it"),
        (document([(0, 2)], 8), (8, 1), "too_many_images", "2 images, more than max_images 1; max_images=2 holds it"),
    ],
)
def test_reject_names_value_limit_and_remedy(
    given: RenderedDocument, limits: tuple[int, int | None], code: str, message: str
) -> None:
    """Fails when the reason for a reject does not say what to do about it."""
    with pytest.raises(DocumentError, match=f"{message}, oversize=truncate or") as caught:
        fit(given, seq_len=limits[0], max_images=limits[1], oversize="reject", step=lambda: 4)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("crops", "seq_len", "max_images", "kept"),
    [
        ((1, 1), 7, None, 6),  # never through a unit
        ((1, 2), 12, 2, 6),  # the image budget
        ((1, 1), 8, None, 8),  # a unit that ends where the pack ends
        ((1, 1), 11, 2, 11),  # as many crops as a pack may have
    ],
)
def test_truncate_keeps_what_fits(crops: tuple[int, int], seq_len: int, max_images: int | None, kept: int) -> None:
    """Fails when half an image is kept, a budget is not, or a unit that just fits is dropped for nothing."""
    whole = document([(2, crops[0]), (6, crops[1])], 12)
    [piece] = fit(whole, seq_len=seq_len, max_images=max_images, oversize="truncate")
    np.testing.assert_array_equal(piece.tokens, np.arange(kept))
    assert piece.units.crops.tolist() == ([1, 1] if kept > 6 else [1])
    assert piece.labels[-1] == X
    assert piece.truncated == 12 - kept


def test_a_split_of_annotations_repeats_the_prefix() -> None:
    """Fails when an annotation comes without its media, its number does not start from 1 in each piece, or the last
    token of a prefix or annotation gets the token after it as its label."""
    whole = document([(0, 1)], 0, shared=3, branches=(4, 4, 4))
    pieces = fit(whole, seq_len=11, max_images=None, oversize="split")
    first, second = pieces
    np.testing.assert_array_equal(first.tokens, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10])
    np.testing.assert_array_equal(second.tokens, [0, 1, 2, 11, 12, 13, 14])
    np.testing.assert_array_equal(second.branch_ids, [0, 0, 0, 1, 1, 1, 1])
    np.testing.assert_array_equal(second.position_ids, [range(7)])
    np.testing.assert_array_equal(second.unit_ids, [0, 0, -1, -1, -1, -1, -1])
    assert [piece.truncated for piece in pieces] == [0, 0]
    np.testing.assert_array_equal(first.labels, [X, X, X, 4, 5, 6, X, 8, 9, 10, X])
    np.testing.assert_array_equal(second.labels, [X, X, X, 12, 13, 14, X])
    for piece in pieces:
        np.testing.assert_array_equal(piece.loss_weights > 0, piece.labels != X)


@pytest.mark.parametrize("oversize", ["truncate", "split"])
def test_the_last_token_of_a_cut_has_no_label(oversize: str) -> None:
    """Fails when the last token of a piece still predicts the token that was cut off, or weighs without a label."""
    first, *others = fit(document([], 8), seq_len=5, max_images=None, oversize=oversize)
    np.testing.assert_array_equal(first.labels, [1, 2, 3, 4, X])
    np.testing.assert_array_equal(first.loss_weights, [1, 1, 1, 1, 0])
    assert [piece.labels.tolist() for piece in others] == ([[6, 7, X]] if oversize == "split" else [])
    assert [piece.label_cut for piece in (first, *others)] == [True, False][: 1 + len(others)]


def test_an_annotation_longer_than_a_pack_is_cut_and_counted() -> None:
    """Fails when tokens lost inside one annotation are not reported."""
    whole = document([(0, 1)], 0, shared=3, branches=(4, 20))
    pieces = fit(whole, seq_len=10, max_images=None, oversize="split")
    assert [len(piece) for piece in pieces] == [7, 10]
    assert sum(piece.truncated for piece in pieces) == 13


def test_nothing_with_loss_left_is_a_reject() -> None:
    """Fails when a prefix without any answer is packed."""
    whole = document([(0, 4)], 0, shared=9, branches=(4,))
    with pytest.raises(DocumentError, match="no part that fits carries any loss"):
        fit(whole, seq_len=8, max_images=None, oversize="truncate")


@given(st.lists(st.integers(1, 3), max_size=6), st.integers(4, 20), st.integers(1, 6), st.integers(1, 40))
def test_pieces_of_a_split_are_the_document(crops: list[int], seq_len: int, max_images: int, tail: int) -> None:
    """Fails when a split loses, repeats or reorders a token, or a piece is above a budget."""
    units, at = [], 1
    for number in crops:
        units.append((at, number))
        at += 2 * number + 1
    whole = document(units, at + tail)
    try:
        pieces = fit(whole, seq_len=seq_len, max_images=max_images, oversize="split")
    except DocumentError:
        return
    tokens = np.concatenate([piece.tokens for piece in pieces])
    assert (np.diff(tokens) > 0).all()
    assert len(tokens) + sum(piece.truncated for piece in pieces) == len(whole)
    for piece in pieces:
        assert len(piece) <= seq_len
        assert piece.n_images <= max_images
        np.testing.assert_array_equal(piece.units.crops, whole.units.crops[piece.units.numbers])
        np.testing.assert_array_equal(
            np.bincount(piece.unit_ids[piece.unit_ids >= 0], minlength=0), 2 * piece.units.crops
        )


def test_patches_are_a_limit_of_their_own() -> None:
    """Fails when a document above max_patches is packed, is refused for its crops, or is cut inside a unit."""
    whole = document([(1, 1), (4, 2)], 12)  # 4 and 8 patches
    [piece] = fit(whole, seq_len=12, max_images=None, max_patches=12, oversize="reject")
    assert piece is whole
    with pytest.raises(DocumentError, match="has 12 patches, more than max_patches 11") as refused:
        fit(whole, seq_len=12, max_images=None, max_patches=11, oversize="reject")
    assert refused.value.code == "too_many_patches"
    [kept] = fit(whole, seq_len=12, max_images=None, max_patches=11, oversize="truncate")
    assert (len(kept), kept.truncated, kept.units.patches.tolist()) == (4, 8, [4])
    pieces = fit(whole, seq_len=12, max_images=None, max_patches=8, oversize="split")
    assert [piece.units.patches.tolist() for piece in pieces] == [[4], [8]]
