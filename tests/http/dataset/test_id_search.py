"""Parts of ids are found where Arrow's own search finds them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from preshard.packer_service.http.dataset.id_search import rows_beginning_with, rows_with


def stored(ids: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Ids as they are kept: their bytes, and where each begins."""
    encoded = [name.encode() for name in ids]
    return np.frombuffer(b"".join(encoded), np.uint8), np.cumsum([0, *map(len, encoded)]).astype(np.int64)


@pytest.mark.parametrize("block_bytes", [1, 7, 100, 1 << 20])
def test_the_rows_are_those_that_arrow_finds(block_bytes: int) -> None:
    """Fails when a part is found across two ids or twice in one, or missed at a block's or an id's edge."""
    draw = np.random.default_rng(block_bytes)
    ids = ["".join(draw.choice(list("ab0é"), draw.integers(0, 9))) for _ in range(300)] + ["x" * 200, "", "a"]
    data, edges = stored(ids)
    for part in ("a", "é", "ab", "aa", "0a0", "b0éa", "aaaaaaaa", "x", "xx", "x" * 200, "x" * 201, "none", ""):
        wanted = np.flatnonzero(pc.match_substring(pa.array(ids), part).to_numpy(zero_copy_only=False))
        found = rows_with(data, edges, part.encode(), block_bytes=block_bytes)
        np.testing.assert_array_equal(found, wanted, err_msg=repr(part))
        wanted = np.array([row for row, name in enumerate(ids) if name.startswith(part)], np.int64)
        np.testing.assert_array_equal(rows_beginning_with(data, edges, part.encode()), wanted, err_msg=repr(part))


def test_a_part_that_most_ids_have_is_found_as_well() -> None:
    """Fails when places that are many are lost, or taken to be few."""
    ids = [f"document-{number:05}" for number in range(20_000)]
    data, edges = stored(ids)
    assert len(rows_with(data, edges, b"document-")) == len(rows_beginning_with(data, edges, b"d")) == 20_000
    np.testing.assert_array_equal(rows_with(data, edges, b"t-0999"), np.arange(9990, 10_000))
    assert len(rows_beginning_with(data, edges, b"ocument-")) == 0


def test_no_ids_hold_nothing() -> None:
    """Fails when a dataset all of whose documents were lost crashes the search."""
    assert rows_with(np.zeros(0, np.uint8), np.zeros(1, np.int64), b"a").tolist() == []
    assert rows_beginning_with(np.zeros(0, np.uint8), np.zeros(1, np.int64), b"a").tolist() == []
