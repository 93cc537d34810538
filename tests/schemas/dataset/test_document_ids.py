"""The hash of an id and the canonical order of documents."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.schemas.dataset.document_ids import canonical_order, hash_ids


def test_the_hash_of_an_id_never_changes() -> None:
    """Fails when the hash changes: every plan would, too, and a mixture would take other documents."""
    ids = pa.array(["", "a", "text-1", "tiny/rows.jsonl:37", "é" * 40])
    assert hash_ids(ids).tolist() == [
        16294208416658607535,
        15874169703858053892,
        12116334320624644004,
        9019701811533582422,
        4984471428251417812,
    ]


def test_a_slice_of_a_longer_array_is_hashed_from_its_own_begin() -> None:
    """Fails when the bytes before a slice are taken for its own, or when wide offsets give another hash."""
    ids = pa.array(["a", "bb", "a", "ccc"])
    assert hash_ids(ids.slice(1, 3)).tolist() == hash_ids(ids).tolist()[1:]
    assert hash_ids(ids.cast(pa.large_string())).tolist() == hash_ids(ids).tolist()


def test_every_bit_of_the_hash_is_set_in_half_of_the_ids() -> None:
    """Fails when ids that differ in a counter alone have hashes that are alike, so that a threshold takes no half."""
    hashes = hash_ids(pa.array([f"document-{i:09d}" for i in range(20_000)]))
    shares = [float((hashes >> np.uint64(bit) & np.uint64(1)).mean()) for bit in range(64)]
    assert 0.48 < min(shares) <= max(shares) < 0.52


@settings(deadline=None)
@given(
    documents=st.lists(
        st.tuples(st.integers(0, 3), st.text("ab", max_size=3), st.integers(0, 2)), max_size=12, unique=True
    ),
    shuffle=st.randoms(use_true_random=False),
)
def test_documents_have_one_order_however_they_come(documents: list[tuple[int, str, int]], shuffle: object) -> None:
    """Fails when rows of one hash, or pieces of one document, stand in the order in which they came."""

    def ordered(rows: list[tuple[int, str, int]]) -> list[tuple[int, str, int]]:
        hashes, ids, pieces = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [])
        order = canonical_order(
            np.array(hashes, np.uint64), pa.chunked_array([ids], pa.string()), np.array(pieces, np.int64)
        )
        return [rows[row] for row in order]

    shuffled = list(documents)
    shuffle.shuffle(shuffled)  # type: ignore[attr-defined]
    assert ordered(documents) == ordered(shuffled)
    assert [hash_ for hash_, _, _ in ordered(documents)] == sorted(hash_ for hash_, _, _ in documents)
