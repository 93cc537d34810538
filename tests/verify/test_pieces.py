"""Pieces behind which something was cut away."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from preshard.packer_service.verify.pieces import MAY_BE_CUT, LaterPieces
from preshard.schemas.tables import REJECTS


def row(doc_id: str, piece: int, *, lost: int = 0, epoch: int = 0) -> dict[str, Any]:
    return {"doc_id": doc_id, "piece": piece, "copy_number": 0, "epoch": epoch, "truncated_tokens": lost}


ROWS = [row("a", 0), row("a", 1), row("b", 0), row("c", 0, lost=3), row("d", 0), row("d", 1, epoch=1)]


def marked(rows: list[dict[str, Any]], *, knows_lost: bool = True) -> tuple[list[bool], LaterPieces]:
    pieces = LaterPieces()
    for part in (rows[:1], rows[1:]):
        pieces.add_documents(pa.Table.from_pylist(part))
    lost = [dict.fromkeys(REJECTS.names, "") | {"doc_id": "e", "stage": stage} for stage in ("write", "plan")]
    pieces.add_rejects(pa.Table.from_pylist(lost, REJECTS))
    return [found[MAY_BE_CUT] for found in pieces.mark(rows, knows_lost=knows_lost)], pieces


def test_only_what_something_follows_may_be_cut() -> None:
    """Fails when the last piece of a document is taken for a cut one, or a piece is followed by another epoch's."""
    found, pieces = marked([*ROWS, row("e", 0)])
    assert found == [True, False, False, True, False, False, True]
    assert pieces.findings == []
    assert all(marked(ROWS, knows_lost=False)[0])


def test_lost_tokens_are_the_last_piece_s() -> None:
    """Fails when tokens are counted as lost behind a piece that another one follows."""
    _, pieces = marked([row("a", 0, lost=2), row("a", 1)])
    [(error, detail)] = pieces.findings
    assert error.rule == "D10"
    assert detail == "'a' has 2 truncated_tokens in piece 0, which another piece follows; the last has them"
