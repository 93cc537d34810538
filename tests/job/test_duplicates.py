"""Rows of one id: numbers for those that differ, one of those that are equal, whatever the order of files."""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.job.planning.duplicates import Row, Settled, settle

IDS = st.sampled_from(["x", "x#2", "x#3", "x#2#2", "y", "#2", ""])
ROWS = st.lists(st.tuples(IDS, st.integers(0, 3), st.booleans()), max_size=14)


def rows_of(drawn: list[tuple[str, int, bool]]) -> list[Row]:
    """Rows by id, content and whether they could be read, each in a line of its own."""
    return [
        Row(
            is_fresh=True,
            is_unread=is_unread,
            content=0 if is_unread else content,
            label="a.json",
            line=number,
            doc_id=doc_id,
            number=number,
            rendered=None,
        )
        for number, (doc_id, content, is_unread) in enumerate(drawn)
    ]


def final_ids(rows: list[Row], settled: Settled) -> dict[int, str]:
    return {row.line: settled.ids.get(row.number, row.doc_id) for row in rows if row.number not in settled.twins}


@settings(deadline=None)
@given(ROWS, st.randoms(use_true_random=False))
def test_every_different_row_has_an_id_of_its_own(drawn: list[tuple[str, int, bool]], rng: random.Random) -> None:
    """Fails when rows are lost or packed twice, a number meets an id of the source, or the order of rows decides."""
    rows = rows_of(drawn)
    settled = settle(rows)
    ids = final_ids(rows, settled)
    assert len(set(ids.values())) == len(ids)
    assert set(ids.values()) >= {doc_id for doc_id, *_ in drawn}, "an id of the source is somebody's"
    different = {(doc_id, content) for doc_id, content, is_unread in drawn if not is_unread}
    assert len(ids) == len(different) + sum(is_unread for *_, is_unread in drawn)
    for row, twin in settled.twins.items():
        assert drawn[row] == drawn[twin]
        assert twin in ids
    shuffled = [row._replace(number=place) for place, row in enumerate(rng.sample(rows, len(rows)))]
    assert final_ids(shuffled, settle(shuffled)) == ids


def test_a_packed_document_keeps_its_id_and_is_equal_to_the_row_that_it_was() -> None:
    """Fails when rows that are packed again beside their dataset are packed twice, or take the ids of its documents."""
    stored = [("x", 7, 70), ("x#2", 8, 80)]
    fresh = [("x", 1, 80), ("x", 2, 70), ("x", 3, 90)]
    rows = [Row(is_fresh, False, content, "l", i, doc_id, i, rendered)
            for i, (is_fresh, (doc_id, content, rendered)) in enumerate(
                [*((True, row) for row in fresh), *((False, row) for row in stored)])]  # fmt: skip
    assert settle(rows) == Settled(ids={2: "x#3"}, twins={0: 4, 1: 3})
    # in one dataset equal documents of different ids are no copies of each other, and in two they are
    blank = [("page#1", 5, 50), ("page#2", 5, 50)]
    twice = [Row(False, False, content, label, i, doc_id, 2 * i + (label == "b"), rendered)
             for label in "ab" for i, (doc_id, content, rendered) in enumerate(blank)]  # fmt: skip
    assert settle(twice).ids == {}
    assert sorted(settle(twice).twins) == [1, 3]
