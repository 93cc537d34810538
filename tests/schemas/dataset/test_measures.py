"""The order of measures.parquet: every row once, a layout's rows together, and pack by pack again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.measures import MeasureGroup, MeasureOrder, measure_groups

GROUPS = (
    MeasureGroup(scheme="contiguous", degree=1),
    MeasureGroup(scheme="zigzag", degree=3),
    MeasureGroup(scheme=None, degree=2),
)


def rows_of(order: MeasureOrder) -> pa.Table:
    """The rows pack by pack, each with what it is."""
    rows = [
        {"pack": pack, "scheme": group.scheme, "degree": group.degree}
        for pack in range(order.n_packs)
        for group in order.groups
    ]
    return pa.Table.from_pylist(
        rows, pa.schema([("pack", pa.int64()), ("scheme", pa.string()), ("degree", pa.int64())])
    )


@pytest.mark.parametrize("n_packs", [0, 1, 4, 5, 11])
@pytest.mark.parametrize("part", [1, 13, 1000])
def test_every_row_lies_in_the_row_group_of_its_layout(
    n_packs: int, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a row is lost, doubled, or in another group's or pack's place, or not found back."""
    monkeypatch.setattr("preshard.schemas.dataset.measures.BLOCK_VALUES", 200)
    order = MeasureOrder(groups=GROUPS, n_packs=n_packs)
    assert (order.n_rows, order.block_packs) == (3 * n_packs, 4)  # 9 + 4, 9 + 12 and 7 + 6 numbers a pack
    rows = rows_of(order)
    tables = list(order.by_table(rows.slice(i, part) for i in range(0, len(rows), part)))
    assert [len(table) for table in tables] == order.row_groups()
    seen = 0
    for group in GROUPS:
        for number, packs in order.parts(group, range(n_packs)):
            assert tables[number].to_pylist() == [
                {"pack": pack, "scheme": group.scheme, "degree": group.degree} for pack in packs
            ]
            seen += len(packs)
    assert seen == len(rows)
    if n_packs:
        written = pa.concat_tables(tables)
        assert written.take(np.argsort(written["pack"].to_numpy(), kind="stable")).equals(rows)


def test_some_packs_lie_in_few_row_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a question about few packs reads the row groups of others, or misses one at an edge."""
    monkeypatch.setattr("preshard.schemas.dataset.measures.BLOCK_VALUES", 200)
    order = MeasureOrder(groups=GROUPS, n_packs=11)
    assert order.parts(GROUPS[1], range(4, 8)) == [(4, range(4, 8))]
    assert order.parts(GROUPS[1], range(3, 9)) == [(1, range(4)), (4, range(4, 8)), (7, range(8, 11))]
    assert order.parts(GROUPS[1], range(5, 5)) == []


def test_a_written_table_has_a_row_group_for_each_layout(tiny_dataset: Path, tiny_config: PackConfig) -> None:
    """Fails when the writer forgets the order, so that a question about one layout reads all of them."""
    file = pq.ParquetFile(tiny_dataset / "measures.parquet")
    n_packs = len(pq.read_table(tiny_dataset / "packs.parquet"))
    groups = measure_groups(tiny_config)
    assert file.num_row_groups == len(groups) == 4 * 4 + 4
    for number, group in enumerate(groups):
        table = file.read_row_group(number)
        assert set(table["scheme"].to_pylist()) == {group.scheme}
        assert set(table["degree"].to_pylist()) == {group.degree}
        assert table["pack_id"].to_pylist() == list(range(n_packs))
        nulls = {name for name in table.column_names if table[name].null_count}
        assert nulls.isdisjoint(group.columns)
