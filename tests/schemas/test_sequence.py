"""The windowed mask: full mask and a distance in places, as if each document and annotation stood alone."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from preshard.schemas.mask import dense_mask
from preshard.schemas.sequence import MaskArrays, drop_groups, list_places


def _small_masks() -> Iterator[MaskArrays]:
    """Every pack of 5 tokens: where documents begin and end, what is padding, where branches begin, a group or none."""
    for docs in itertools.product((-1, 0, 1), repeat=5):
        real = [doc for doc in docs if doc >= 0]
        if real != sorted(real):
            continue
        for steps in itertools.product((0, 1), repeat=5):
            branch, last, number = [], None, 0
            for doc, step in zip(docs, steps, strict=True):
                number = step if doc != last else number + step
                last = doc
                branch.append(number if doc >= 0 else 0)
            arrays = [np.array(each, np.int32) for each in (docs, branch, [-1, 0, 0, 0, -1])]
            if (arrays[1][arrays[0] < 0] == 0).all():
                yield MaskArrays(doc_ids=arrays[0], branch_ids=arrays[1], group_ids=arrays[2])


def _places_alone(mask: MaskArrays) -> list[int]:
    """Places by the definition: the document is taken apart, token by token."""
    places = []
    for token in range(mask.seq_len):
        doc, branch = mask.doc_ids[token], mask.branch_ids[token]
        alone = [
            other
            for other in range(mask.seq_len)
            if mask.doc_ids[other] == doc and mask.branch_ids[other] in (0, branch)
        ]
        alone.sort(key=lambda other: (mask.branch_ids[other], other))
        places.append(alone.index(token) if doc >= 0 else -1)
    return places


def test_places_are_those_of_a_document_alone() -> None:
    """Fails when an annotation's place counts other annotations, or a document's the pack before it."""
    branched = 0
    for mask in _small_masks():
        places = list_places(mask)
        assert places.tolist() == _places_alone(mask)
        assert places.dtype == np.int32
        branched += bool((mask.branch_ids > 1).any())
    assert branched > 100


@pytest.mark.parametrize("window", [1, 2, 3, 5])
def test_a_window_takes_from_the_full_mask_what_lies_too_far_back(window: int) -> None:
    """Fails when a window ends one token early or late, or hides a later token of a query's own group."""
    shorter = later = 0
    for mask in itertools.islice(_small_masks(), 0, None, 3):
        full, places = dense_mask(mask), _places_alone(mask)
        seen = dense_mask(mask, window=window)
        for query, key in itertools.product(range(5), repeat=2):
            assert seen[query, key] == (full[query, key] and places[query] - places[key] < window)
        shorter += bool((seen != full).any())
        later += int(np.triu(seen, 1).sum())
    assert later
    assert shorter or window == 5


def test_a_window_of_some_queries_and_keys() -> None:
    """Fails when places are taken of the rows asked for, and not of the pack."""
    mask = MaskArrays(
        doc_ids=np.array([0, 0, 0, 0, 0, 0, -1, 1, 1], np.int32),
        branch_ids=np.array([0, 0, 1, 1, 2, 2, 0, 1, 1], np.int32),
        group_ids=np.full(9, -1, np.int32),
    )
    assert list_places(mask).tolist() == [0, 1, 2, 3, 2, 3, -1, 0, 1]
    every = dense_mask(mask, window=2)
    assert every.sum(axis=1).tolist() == [1, 2, 2, 2, 2, 2, 0, 1, 2]
    queries, keys = np.array([5, 2, 8]), np.array([7, 1, 4])
    np.testing.assert_array_equal(dense_mask(mask, queries, keys, window=2), every[queries][:, keys])


def test_without_groups_a_mask_is_causal() -> None:
    """Fails when a full layer of a model with images in windows alone sees a later token."""
    mask = MaskArrays(doc_ids=np.zeros(4, np.int32), branch_ids=np.zeros(4, np.int32), group_ids=np.zeros(4, np.int32))
    assert dense_mask(mask).all()
    np.testing.assert_array_equal(dense_mask(drop_groups(mask)), np.tri(4, dtype=bool))


def test_places_of_an_empty_pack() -> None:
    """Fails when no token at all is an error."""
    none = np.zeros(0, np.int32)
    assert list_places(MaskArrays(doc_ids=none, branch_ids=none, group_ids=none)).tolist() == []
