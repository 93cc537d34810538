"""Which documents are twice and which are lost, and the balance table in parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from preshard.packer_service.shards.store import Folder
from preshard.packer_service.verify.balance_reader import BalanceReader
from preshard.packer_service.verify.tables import check_documents, count_documents
from preshard.packer_service.verify.verdict import Faults
from preshard.schemas.balance import BalanceOrder, LoadGroup
from preshard.schemas.config import PackConfig, parse_config
from preshard.schemas.manifest import TableEntry
from preshard.schemas.tables import BALANCE, DOCUMENTS, REJECTS


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
    table, lost = documents(*packed), rejects(*rejected)
    assert [error.rule for error, _ in check_documents(table, lost, config)] == rules
    assert count_documents(table, lost) == counts


@pytest.mark.parametrize("row_group", [7, 50, 1000])
def test_balance_comes_pack_by_pack_in_parts_whatever_the_row_groups(
    row_group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when rows are lost between row groups or blocks, or a part that was passed over shifts those after it."""
    monkeypatch.setattr("preshard.schemas.balance.BLOCK_ROWS", 100)
    groups = (LoadGroup(scheme="zigzag", degree=2), LoadGroup(scheme=None, degree=3))
    order = BalanceOrder(groups=groups, n_packs=23)
    assert (order.rows_per_pack, order.block_packs) == (20, 5)
    n = 23 * 20
    columns: dict[str, list[Any]] = {"pack_id": [i // 20 for i in range(n)], "kind": ["images"] * n}
    columns |= {"scheme": [None] * n, "degree": [1] * n, "rank": [0] * n, "load": list(range(n))}
    by_pack = pa.table({f.name: pa.array(columns[f.name], f.type) for f in BALANCE}, schema=BALANCE)
    written = pa.concat_tables(order.by_table([by_pack]))
    assert written["load"].to_pylist() != list(range(n))
    pq.write_table(written, tmp_path / "balance.parquet", row_group_size=row_group)
    faults = Faults()
    entry = TableEntry(name="balance.parquet", bytes=0, sha256="", rows=n)
    reader = BalanceReader(Folder(str(tmp_path)), faults, entry, order)
    loads = []
    for start in (0, 10, 140, n - 5):
        part = reader.take(start, 10)
        assert part is not None
        loads += part["load"].to_pylist()
    assert loads == [*range(20), *range(140, 150), *range(n - 5, n)]
    assert reader.take(0, 10) is None
    assert not faults.listed
    reader.close()
