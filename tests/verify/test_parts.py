"""What verifying knows of tables that it reads in parts, against the whole table."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.shards.store import Folder
from preshard.packer_service.verify.scan import DocumentOrder, DocumentRows, PackSpan, RowReader

N_PACKS = 6


@settings(deadline=None)
@given(
    places=st.lists(st.tuples(st.integers(-1, N_PACKS), st.integers(0, 3)), max_size=12),
    cuts=st.lists(st.integers(0, 12), max_size=3),
    ordered=st.booleans(),
)
def test_the_first_row_behind_a_larger_one_is_named(
    places: list[tuple[int, int]], cuts: list[int], ordered: bool
) -> None:
    """Fails when a row out of order is not seen across parts, or a pack that does not exist is let through."""
    places = sorted(places) if ordered else places
    table = pa.table({"pack_id": pa.array([p for p, _ in places], pa.int64()),
                      "start": pa.array([s for _, s in places], pa.int64())})  # fmt: skip
    edges = [0, *sorted(min(cut, len(places)) for cut in cuts), len(places)]
    order = DocumentOrder(N_PACKS)
    for a, b in pairwise(edges):
        order.add(table.slice(a, b - a))
    behind = [row for row in range(1, len(places)) if places[row] < places[row - 1]]
    outside = [row for row, (pack, _) in enumerate(places) if not 0 <= pack < N_PACKS]
    expected = [f"row {behind[0]} is out"] if behind else []
    expected += [f"row {outside[0]} has pack_id {places[outside[0]][0]} of"] if outside else []
    found = [detail for _, detail in order.findings()]
    assert [detail[: len(start)] for detail, start in zip(found, expected, strict=True)] == expected


def test_rows_are_found_by_pack_wherever_they_lie(tmp_path: Path) -> None:
    """Fails when rows at the edge of a row group are lost, or rows out of order are not found."""
    packs = [0, 0, 1, 1, 1, 4, 2, 2, 3, 0]
    table = pa.table({"pack_id": pa.array(packs, pa.int64()), "row": np.arange(10)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=4)
    reader = RowReader(Folder(str(tmp_path)), "t.parquet")
    assert reader.rows(3, 9)["row"].to_pylist() == [3, 4, 5, 6, 7, 8]
    assert [len(reader.rows(*place)) for place in ((10, 12), (8, 40), (0, 0))] == [0, 2, 0]
    spans = [PackSpan(a, a + 3, min(packs[a : a + 3]), max(packs[a : a + 3])) for a in range(0, 10, 3)]
    spans[-1] = spans[-1]._replace(end_row=10)
    rows = DocumentRows(reader, spans)
    assert [row["row"] for row in rows.of_packs(0, 2)] == [0, 1, 9, 2, 3, 4]
    assert [row["row"] for row in rows.of_packs(2, 5)] == [6, 7, 8, 5]
    assert rows.of_packs(7, 9) == []
    reader.close()
