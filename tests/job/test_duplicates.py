"""Ids that came before, compared with a set of all that were seen."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packer_service.job import duplicates as module
from packer_service.job.duplicates import repeated


def plainly(ids: list[str]) -> list[bool]:
    return [value in ids[:i] for i, value in enumerate(ids)]


@settings(deadline=None)
@given(st.lists(st.lists(st.text(st.sampled_from("ab\0é"), max_size=3), max_size=8), max_size=4))
def test_an_id_is_repeated_when_it_was_there_before(chunks: list[list[str]]) -> None:
    """Fails when a chunk's edge, an empty string or a byte beyond ASCII hides a repetition, or makes one."""
    ids = pa.chunked_array(chunks, pa.string())
    assert repeated(ids).tolist() == plainly([value for chunk in chunks for value in chunk])


def test_a_slice_of_a_longer_array_counts_from_its_own_begin() -> None:
    """Fails when the bytes before a slice are taken for its own."""
    ids = pa.array(["a", "bb", "a", "ccc", "bb", "ccc"]).slice(1, 4)
    assert repeated(pa.chunked_array([ids])).tolist() == [False, False, False, True]


def test_many_ids_are_found_across_batches() -> None:
    """Fails when only ids of one batch are compared, or the hash gives hundreds of thousands of ids the same value."""
    ids = [f"document-{i:09d}" for i in range(150_000)]
    ids[149_999], ids[70_000] = ids[3], ids[69_999]
    assert np.flatnonzero(repeated(pa.chunked_array([ids]))).tolist() == [70_000, 149_999]
    rows = module._twice(np.concatenate([module._hashes(each) for each in module._batches(pa.chunked_array([ids]))]))
    assert rows.tolist() == [3, 69_999, 70_000, 149_999]


def test_ids_with_one_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when two documents are taken for one because of a hash."""
    monkeypatch.setattr(module, "_hashes", lambda ids: np.zeros(len(ids), np.uint64))
    assert repeated(pa.chunked_array([["a", "b", "a"], ["c", "b"]])).tolist() == [False, False, True, False, True]
