"""Rows of rejects.parquet: the same columns whichever way they are made."""

from __future__ import annotations

import pyarrow as pa
import pytest

from preshard.schemas.errors import DocumentError
from preshard.schemas.tables import REJECTS, reason_columns, reject_row, rejects_table

ERROR = DocumentError("too_long", "has 9 tokens")


def test_a_row_and_its_columns_are_the_same_table() -> None:
    """Fails when one of the two ways leaves a column out, or fills it with another's value."""
    row = reject_row(doc_id="a", source="web", location="rows.jsonl:3", stage="write", error=ERROR)
    by_row = pa.Table.from_pylist([row], schema=REJECTS)
    columns = {"doc_id": pa.array(["a"]), "source": pa.array(["web"]), "location": "rows.jsonl:3"}
    by_column = rejects_table(1, **columns, stage="write", code="too_long", message="has 9 tokens")
    assert by_row.equals(by_column)
    assert by_row.to_pylist() == [row]
    assert None not in row.values()


def test_what_is_not_known_is_null() -> None:
    """Fails when a plan by lengths alone, which knows no rows, claims places or messages."""
    ids = pa.array(["a", "b"])
    table = rejects_table(2, doc_id=ids, source=ids, location=None, stage="plan", code="empty", message=None)
    assert table.schema == REJECTS
    assert table["location"].null_count == table["message"].null_count == 2
    assert table["stage"].to_pylist() == ["plan", "plan"]


def test_a_stage_that_the_format_does_not_name_is_refused() -> None:
    """Fails when a new step of the job writes a stage that verify refuses."""
    with pytest.raises(AssertionError, match="packing"):
        reason_columns("packing", ERROR)
