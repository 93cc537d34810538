"""The most frequent reasons of rejects."""

from __future__ import annotations

import re
from typing import cast

import pyarrow as pa
import pytest

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.families.family import Family
from preshard.packer_service.ingest.media.shape import ImageSize, place
from preshard.packer_service.report.console import reason_lines, unread_lines
from preshard.packer_service.report.losses import LISTED, losses_of
from preshard.packer_service.report.records import RejectReason
from preshard.schemas.errors import DocumentError
from preshard.schemas.tables import rejects_table


def rejects(*reasons: tuple[str, str | None]) -> pa.Table:
    codes, messages = zip(*reasons, strict=True)
    number = range(1, len(reasons) + 1)
    return rejects_table(
        len(reasons),
        doc_id=pa.array([f"d{i}" for i in number]),
        source="default",
        location=pa.array([f"rows.jsonl:{i}" for i in number]),
        stage="read",
        code=pa.array(codes),
        message=pa.array(messages, pa.string()),
    )


def reasons_of(*parts: pa.Table) -> list[RejectReason]:
    return losses_of(parts, {}).reject_reasons


def test_messages_that_differ_in_values_are_one_reason() -> None:
    """Fails when forty rows with one fault are forty reasons, or two faults become one."""
    found = reasons_of(
        rejects(
            ("too_long", "has 2005 tokens, more than seq_len 1024"),
            ("bad_row", "messages[0].role is 'it''s'; legal are user"),
            ("bad_row", 'messages[13].role is "o\'clock"; legal are user'),
            ("bad_row", "text is a number, not a string"),
            ("missing_media", "photos/a b.png: no such file"),
            ("missing_media", "s3://bucket/7: no such file"),
            ("missing_media", "photos/c.png: permission denied"),
            ("too_long", "has 1,305.5 tokens, more than seq_len 1024"),
            ("bad_row", "messages[2].role is 'x'; legal are user"),
        )
    )
    assert [(reason.documents, reason.code, reason.doc_id) for reason in found] == [
        (2, "too_long", "d1"),
        (2, "bad_row", "d3"),
        (2, "missing_media", "d5"),
        (1, "bad_row", "d2"),
        (1, "bad_row", "d4"),
        (1, "missing_media", "d7"),
    ]
    assert found[0].message == "has 2005 tokens, more than seq_len 1024"
    assert found[0].location == "rows.jsonl:1"


class Refusing:
    """A family that takes no videos."""

    def within(self, medium: Medium) -> Family:
        raise DocumentError("bad_row", f"shows a {medium.kind}, and the model takes none")


def test_a_medium_that_no_model_takes_is_one_reason() -> None:
    """Fails when each file that the model does not take is a reason of its own, or its name is lost."""
    messages = []
    for name in ("a's.mp4", "clips/b.mp4", 'c "2".mp4'):
        with pytest.raises(DocumentError, match=re.escape(name)) as error:
            place(cast("Family", Refusing()), Medium(kind="video", uri=name), ImageSize(width=1, height=1))
        messages.append(("bad_row", str(error.value)))
    (reason,) = reasons_of(rejects(*messages))
    assert reason.documents == 3


def test_the_lines_name_the_most_frequent_and_count_the_others() -> None:
    """Fails when a reject is in none of the lines, or the lines do not say where all rejects are."""
    words = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"]
    assert len(words) == LISTED + 2
    reasons = reasons_of(rejects(*[("bad_row", f"{word} is wrong") for word in [*words, "k"]], ("empty", None)))
    lines = reason_lines(reasons, 14, "out/rejects.parquet")
    assert lines[1] == "  2 bad_row: k is wrong (rows.jsonl:11)"
    assert lines[2] == "  1 bad_row: a is wrong (rows.jsonl:1)"
    assert lines[-2:] == ["  3 for other reasons", "  every reject: out/rejects.parquet"]
    assert reason_lines(reasons_of(rejects(("empty", None))), 1)[1:] == ["  1 empty: no message (rows.jsonl:1)"]
    assert reason_lines(reasons_of(rejects(("empty", "x")).slice(0, 0)), 0) == []


def test_what_nothing_read_is_named_most_frequent_first() -> None:
    """Fails when a column or file that was not read is in none of the lines, or a name commands the terminal."""
    columns = {f"c{i}": 1 for i in range(22)} | {"url": 3, "\x1b[2J": 2}
    first, last = unread_lines(columns, {"*.png": 2310}, {})
    assert first.startswith("columns that nothing read, by number of files: url (3), \\x1b[2J (2), c0 (1), c1 (1)")
    assert first.endswith(", and 4 more")
    assert last == "files not read as rows: *.png (2,310)"
    assert unread_lines({}, {}, {}) == []
