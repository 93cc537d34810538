"""The order of balance.parquet: every row once, a layout's rows together, and pack by pack again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preshard.schemas.balance import BalanceOrder, LoadGroup, load_groups
from preshard.schemas.config import PackConfig

GROUPS = (
    LoadGroup(scheme="contiguous", degree=1),
    LoadGroup(scheme="zigzag", degree=3),
    LoadGroup(scheme=None, degree=2),
)


def rows_of(order: BalanceOrder) -> pa.Table:
    """The rows pack by pack, each with what it is."""
    rows = [
        {"pack": pack, "scheme": group.scheme, "kind": kind, "rank": rank}
        for pack in range(order.n_packs)
        for group in order.groups
        for kind in group.kinds
        for rank in range(group.degree)
    ]
    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize("n_packs", [0, 1, 4, 5, 11])
@pytest.mark.parametrize("part", [1, 13, 1000])
def test_every_row_lies_where_its_stretch_says(n_packs: int, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a row is lost, doubled, or in another group's, kind's, pack's or rank's place, or not found back."""
    monkeypatch.setattr("preshard.schemas.balance.BLOCK_ROWS", 100)
    order = BalanceOrder(groups=GROUPS, n_packs=n_packs)
    assert (order.rows_per_pack, order.block_packs) == (24, 4)
    rows = rows_of(order)
    parts = [rows.slice(i, part) for i in range(0, len(rows), part)]
    tables = list(order.by_table(parts))
    stretches = list(order.stretches())
    assert [len(table) for table in tables] == [stretch.rows for stretch in stretches]
    assert [s.first_row for s in stretches] == np.cumsum([0, *(len(t) for t in tables)])[:-1].tolist()
    for table, stretch in zip(tables, stretches, strict=True):
        assert table.to_pylist() == [
            {"pack": pack, "scheme": stretch.group.scheme, "kind": kind, "rank": rank}
            for kind in stretch.group.kinds
            for pack in range(stretch.first_pack, stretch.first_pack + stretch.packs)
            for rank in range(stretch.group.degree)
        ]
    if n_packs:
        written = pa.concat_tables(tables)
        again = [written.slice(i, part) for i in range(0, len(written), part)]
        assert pa.concat_tables(order.by_pack(again)).equals(rows)
        assert pa.concat_tables(order.by_block(again)).equals(written)


def test_missing_rows_are_missing_where_they_would_lie_and_surplus_ones_come_last() -> None:
    """Fails when a table cut short, or with a row too many, shifts the rows of other packs."""
    order = BalanceOrder(groups=GROUPS, n_packs=3)
    rows = rows_of(order)
    written = pa.concat_tables(order.by_table([rows]))
    cut = pa.concat_tables(order.by_pack([written.slice(0, len(written) - 1)])).to_pylist()
    assert cut == rows.to_pylist()[:-1]
    more = pa.concat_tables([written, written.slice(0, 2)])
    assert pa.concat_tables(order.by_pack([more])).to_pylist() == rows.to_pylist() + written.slice(0, 2).to_pylist()


def test_a_written_table_has_a_row_group_a_stretch(tiny_dataset: Path, tiny_config: PackConfig) -> None:
    """Fails when the writer forgets the order, so that a question about one layout reads all of them."""
    file = pq.ParquetFile(tiny_dataset / "balance.parquet")
    n_packs = len(pq.read_table(tiny_dataset / "packs.parquet"))
    stretches = list(BalanceOrder.of(tiny_config, n_packs).stretches())
    assert [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)] == [s.rows for s in stretches]
    assert len(stretches) == len(load_groups(tiny_config)) == 4 * 4 + 4
    for number, stretch in enumerate(stretches):
        table = file.read_row_group(number)
        assert set(table["scheme"].to_pylist()) == {stretch.group.scheme}
        assert set(table["degree"].to_pylist()) == {stretch.group.degree}
        assert table["kind"].to_pylist() == list(np.repeat(stretch.group.kinds, stretch.packs * stretch.group.degree))
