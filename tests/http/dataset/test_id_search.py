"""Parts of ids are found where Arrow's own search finds them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from packer_service.http.dataset.id_search import rows_with


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
        for at_start, function in ((False, pc.match_substring), (True, pc.starts_with)):
            wanted = np.flatnonzero(function(pa.array(ids), part).to_numpy(zero_copy_only=False))
            found = rows_with(data, edges, part.encode(), at_start=at_start, block_bytes=block_bytes)
            np.testing.assert_array_equal(found, wanted, err_msg=f"{part!r} {at_start}")


def test_a_part_that_most_ids_have_is_found_as_well() -> None:
    """Fails when places that are many are lost, or taken to be few."""
    ids = [f"document-{number:05}" for number in range(20_000)]
    data, edges = stored(ids)
    assert len(rows_with(data, edges, b"document-")) == len(rows_with(data, edges, b"d", at_start=True)) == 20_000
    np.testing.assert_array_equal(rows_with(data, edges, b"t-0999"), np.arange(9990, 10_000))
    assert len(rows_with(data, edges, b"ocument-", at_start=True)) == 0


def test_no_ids_hold_nothing() -> None:
    """Fails when a dataset all of whose documents were lost crashes the search."""
    assert rows_with(np.zeros(0, np.uint8), np.zeros(1, np.int64), b"a").tolist() == []
