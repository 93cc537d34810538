"""Ids that came before, compared with a set of all that were seen."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.job.duplicates import repeated, shared_hashes
from preshard.schemas.document_ids import hash_ids


def plainly(ids: list[str]) -> list[bool]:
    return [value in ids[:i] for i, value in enumerate(ids)]


@settings(deadline=None)
@given(st.lists(st.lists(st.text(st.sampled_from("ab\0é"), max_size=3), max_size=8), max_size=4))
def test_an_id_is_repeated_when_it_was_there_before(chunks: list[list[str]]) -> None:
    """Fails when a chunk's edge, an empty string or a byte beyond ASCII hides a repetition, or makes one."""
    ids = pa.chunked_array(chunks, pa.string())
    assert repeated(ids, hash_ids(ids)).tolist() == plainly([value for chunk in chunks for value in chunk])


def test_many_ids_are_found_across_batches() -> None:
    """Fails when only ids of one batch are compared, or the hash gives hundreds of thousands of ids the same value."""
    names = [f"document-{i:09d}" for i in range(150_000)]
    names[149_999], names[70_000] = names[3], names[69_999]
    ids = pa.chunked_array([names])
    hashes = hash_ids(ids)
    assert np.flatnonzero(repeated(ids, hashes)).tolist() == [70_000, 149_999]
    assert shared_hashes(hashes).tolist() == [3, 69_999, 70_000, 149_999]


def test_ids_with_one_hash_are_told_apart() -> None:
    """Fails when two documents are taken for one because of a hash."""
    ids = pa.chunked_array([["a", "b", "a"], ["c", "b"]])
    assert repeated(ids, np.zeros(5, np.uint64)).tolist() == [False, False, True, False, True]
