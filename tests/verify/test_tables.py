"""Documents that are twice and those that are lost, and tables read in parts against whole ones."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from preshard.packer_service.shards.store import Folder
from preshard.packer_service.tables.connect import connect
from preshard.packer_service.verify.scan import DocumentOrder, DocumentRows, MeasuresReader, PackSpan, RowReader
from preshard.packer_service.verify.tables import check_documents, count_documents, fetch
from preshard.packer_service.verify.verdict import Faults
from preshard.schemas.config import PackConfig, parse_config
from preshard.schemas.dataset.measures import MEASURES, MeasureGroup, MeasureOrder
from preshard.schemas.manifest import TableEntry
from preshard.schemas.tables import DOCUMENTS, REJECTS


def documents(*pieces: tuple[Any, ...]) -> pa.Table:
    """Ids and pieces, and where they are given copies, epochs and packs."""
    names = ("doc_id", "piece", "copy_number", "epoch", "pack_id")
    blank = {**dict.fromkeys(DOCUMENTS.names, 0), "source": "s"}
    rows = [{**blank, **dict(zip(names, piece, strict=False))} for piece in pieces]
    return pa.Table.from_pylist(rows, schema=DOCUMENTS)


def rejects(*rows: tuple[str, str, str]) -> pa.Table:
    blank = dict.fromkeys(REJECTS.names, "")
    return pa.Table.from_pylist(
        [{**blank, "doc_id": name, "stage": stage, "code": code} for name, stage, code in rows], schema=REJECTS
    )


WHOLE, SPLIT = parse_config({}), parse_config({"oversize": "split"})
LOST, AGAIN = ("write", "decode_failed"), ("plan", "duplicate_row")


@pytest.mark.parametrize(
    ("packed", "rejected", "config", "rules", "counts"),
    [
        ([("a", 0), ("b", 0)], [("c", "read", "bad_row")], WHOLE, [], (2, 1)),
        ([("a", 0), ("a", 1)], [], SPLIT, [], (1, 0)),
        ([("a", 0), ("a", 2)], [("a", *LOST)], SPLIT, [], (1, 0)),
        ([("b", 0)], [("a", *LOST), ("a", *LOST)], SPLIT, [], (1, 1)),
        ([("a", 0)], [("a", *AGAIN), ("a", *AGAIN)], WHOLE, [], (1, 2)),
        ([], [("a", "read", "empty"), ("a", *AGAIN)], WHOLE, [], (0, 2)),
        ([("a", 0), ("a", 0)], [], WHOLE, ["D8"], (1, 0)),
        ([("a", 0)], [("a", "read", "empty")], WHOLE, ["D8"], (1, 1)),
        ([("a", 0)], [("a", *LOST)], WHOLE, ["D8"], (1, 0)),
        ([], [("a", *LOST), ("a", *LOST)], WHOLE, ["D8"], (0, 1)),
        ([], [("a", "read", "empty"), ("a", "read", "empty")], WHOLE, ["D8"], (0, 2)),
        ([], [("a", "read", "empty"), ("a", *LOST)], SPLIT, ["D8"], (0, 2)),
        ([("a", 0), ("a", 2)], [], SPLIT, ["D9"], (1, 0)),
        ([("a", 0), ("a", 3)], [("a", *LOST)], SPLIT, ["D9"], (1, 0)),
        ([("b", 0)], [("a", *AGAIN)], WHOLE, ["D9"], (1, 1)),
        ([("a", 0, 0, 0, 0), ("a", 0, 1, 0, 1), ("a", 0, 0, 1, 2)], [], WHOLE, [], (1, 0)),
        ([("a", 0, 0, 0, 0), ("a", 0, 0, 0, 1)], [], WHOLE, ["D8"], (1, 0)),
        ([("a", 0, 0, 0, 5), ("a", 0, 1, 0, 5)], [], WHOLE, ["D8"], (1, 0)),
        ([("a", 0, 0, 0, 5), ("a", 0, 0, 1, 5)], [], WHOLE, ["D8"], (1, 0)),
    ],
)
def test_documents_are_packed_once_or_rejected_once(
    packed: list[Any], rejected: list[Any], config: PackConfig, rules: list[str], counts: tuple[int, int]
) -> None:
    """Fails when a duplicate, a lost piece or a piece lost in writing is judged wrongly."""
    with connect({"documents": documents(*packed), "rejects": rejects(*rejected)}) as tables:
        ask = partial(fetch, tables)
        assert [error.rule for error, _ in check_documents(ask, config)] == rules
        assert count_documents(ask) == counts


@pytest.mark.parametrize("row_group", [None, 7, 1000])
@pytest.mark.parametrize("more", [-3, 0, 2])
def test_measures_are_found_by_pack_whatever_the_row_groups(
    more: int, row_group: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when rows are lost between row groups or blocks, a table that was cut short shifts the rows of packs before
    the cut, or a column that some row groups lack is not null.
    """
    monkeypatch.setattr("preshard.schemas.dataset.measures.BLOCK_VALUES", 200)
    groups = (MeasureGroup(scheme="zigzag", degree=2), MeasureGroup(scheme=None, degree=3))
    order, n = MeasureOrder(groups=groups, n_packs=23), 2 * 23
    assert order.block_packs == 6
    numbers = np.arange(n)
    columns: dict[str, Any] = {field.name: pa.nulls(n, field.type) for field in MEASURES}
    columns |= {"pack_id": numbers // 2, "degree": np.ones(n, np.int64), "gather_path": numbers}
    columns["scheme"] = pa.array(["zigzag", None] * 23)
    by_pack = pa.table(columns).cast(MEASURES)
    parts = list(order.by_table([by_pack]))
    written = pa.concat_tables([*parts, *parts], promote_options="permissive").slice(0, n + more)
    assert written["gather_path"].to_pylist()[:n] != list(range(n))
    sizes = order.row_groups() if row_group is None else [row_group] * (n // row_group)
    with pq.ParquetWriter(tmp_path / "measures.parquet", MEASURES) as file:
        for at, end in pairwise([*np.cumsum([0, *sizes]).tolist(), n + more]):
            if at < end:
                file.write_table(written.slice(at, end - at))
    faults, entry = Faults(), TableEntry(name="measures.parquet", bytes=0, sha256="0" * 64, rows=n + more)
    reader = MeasuresReader(Folder(str(tmp_path)), faults, entry, order)
    for first, end in ((0, 2), (5, 19), (4, 6), (22, 23), (3, 3)):
        found = reader.of_packs(first, end)
        assert found is not None
        asked = by_pack.slice(2 * first, 2 * (end - first)).to_pylist()
        cut = [row for row in asked if row["gather_path"] not in (41, 43, 45)] if more < 0 else asked
        assert found.to_pylist() == cut
    assert reader.count_surplus() == max(more, 0)
    wrong = not more and row_group is not None
    assert [fault.rule for fault in faults.listed] == (["D6"] if wrong else [])  # the row groups
    reader.close()


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
    texts = {name: pa.array([""] * 10) for name in ("doc_id", "source")}
    zeros = dict.fromkeys(DOCUMENTS.names, np.zeros(10, np.int64))
    columns = {**zeros, **texts, "pack_id": pa.array(packs, pa.int64()), "start": np.arange(10)}
    pq.write_table(pa.table(columns, schema=DOCUMENTS), tmp_path / "documents.parquet", row_group_size=4)
    reader = RowReader(Folder(str(tmp_path)), "documents.parquet")
    assert reader.rows(3, 9)["start"].to_pylist() == [3, 4, 5, 6, 7, 8]
    assert [len(reader.rows(*place)) for place in ((10, 12), (8, 40), (0, 0))] == [0, 2, 0]
    spans = [PackSpan(a, a + 3, min(packs[a : a + 3]), max(packs[a : a + 3])) for a in range(0, 10, 3)]
    spans[-1] = spans[-1]._replace(end_row=10)
    rows = DocumentRows(reader, spans)
    assert [row["start"] for row in rows.of_packs(0, 2)] == [0, 1, 9, 2, 3, 4]
    assert [row["start"] for row in rows.of_packs(2, 5)] == [6, 7, 8, 5]
    assert rows.of_packs(7, 9) == []
    reader.close()
