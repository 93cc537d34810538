"""Stores that fail: what costs a row, what stops the job, and what is tried again."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media import stores
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.stores import MOST_FAILURES, StoreDownError, Stores, reading_row
from preshard.packer_service.job.planning.measured import (
    MEASURED,
    Measured,
    find_measured,
    keep_measured,
    read_measured,
)
from preshard.packer_service.shards.store import Folder
from preshard.schemas.errors import DocumentError
from preshard.schemas.tables import reason_columns

BASE = MediaReach(folder="/data", roots=("/data", "s3://up", "s3://down"))


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Waits between tries, which pass at once."""
    found: list[float] = []
    monkeypatch.setattr(stores, "time", SimpleNamespace(monotonic=lambda: sum(found), sleep=found.append))
    return found


def refuse() -> str:
    raise OSError("AWS Error NETWORK_CONNECTION during HeadObject operation: curlCode: 7, Couldn't connect to server")


def image(uri: str) -> Medium:
    return Medium(kind="image", uri=uri)


def test_one_bad_uri_costs_a_row_and_a_store_that_is_down_stops_the_job(waits: list[float]) -> None:
    # Fails when one row ends the job, or when a store that is down rejects every row after half a minute each.
    known = Stores()
    for number in range(1, MOST_FAILURES):
        with reading_row(f"rows.jsonl:{number}"), pytest.raises(DocumentError, match="NETWORK_CONNECTION") as caught:
            known.ask(image(f"s3://down/{number}.jpg"), BASE, refuse)
        assert caught.value.code == "unreachable_media"
        assert waits == [1.0, 2.0, 4.0, 8.0], "only the first is tried again"
        assert known.ask(image("s3://up/x.jpg"), BASE, lambda: "read") == "read", "another store"
    first = r"s3://down is down: .* none of 8 .* the first of rows.jsonl:1 \(s3://down/1.jpg\)"
    with reading_row("rows.jsonl:8"), pytest.raises(StoreDownError, match=first):
        known.ask(image("s3://down/8.jpg"), BASE, refuse)
    assert known.ask(image("s3://down/9.jpg"), BASE, lambda: "read") == "read"
    with pytest.raises(DocumentError, match="the store did not give it"):
        known.ask(image("s3://down/10.jpg"), BASE, refuse)
    assert len(waits) == 8, "it had answered, so it is tried again"


def test_what_passes_is_tried_again(waits: list[float]) -> None:
    # Fails when a reset connection costs a row.
    answers = iter([OSError("reset"), OSError("reset"), "read"])

    def answer() -> str:
        found = next(answers)
        if isinstance(found, OSError):
            raise found
        return found

    assert Stores().ask(image("s3://down/1.jpg"), BASE, answer) == "read"
    assert waits == [1.0, 2.0]


def test_what_trying_again_does_not_mend_is_not(waits: list[float]) -> None:
    # Fails when each file that may not be read takes half a minute.
    def deny() -> str:
        raise OSError("AWS Error ACCESS_DENIED during HeadObject operation: No response body.")

    with pytest.raises(DocumentError, match="ACCESS_DENIED"):
        Stores().ask(image("s3://down/1.jpg"), BASE, deny)
    assert waits == []


def test_a_disk_that_fails_is_no_store(waits: list[float]) -> None:
    # Fails when a full disk, a broken one or an ended decoder rejects documents.
    def broken() -> str:
        raise OSError(errno.EIO, "Input/output error")

    def full() -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    def ended() -> str:
        raise ChildProcessError("ended")

    for medium, call in ((image("1.jpg"), broken), (image("s3://down/1.jpg"), full), (image("s3://down/1"), ended)):
        with pytest.raises(OSError, match=r"error|left|ended"):
            Stores().ask(medium, BASE, call)
    assert waits == []


def test_rows_that_a_store_did_not_give_are_measured_again(tmp_path: Path) -> None:
    # Fails when a job that was stopped keeps, as rejects, rows that a later run could read.
    lost = {"row": 0, "doc_id": "a", "source": "s"} | reason_columns("measure", DocumentError("unreachable_media", "x"))
    bad = lost | reason_columns("measure", DocumentError("bad_image", "x"))
    for number, row in enumerate((lost, bad)):
        table = pa.Table.from_pylist([row], schema=MEASURED)
        kept = keep_measured(Folder(str(tmp_path)), number, Measured(table, 1, []), 0.0).kept
        assert read_measured(Folder(str(tmp_path)), kept).measured.table.equals(table)
    assert list(find_measured(Folder(str(tmp_path)), range(2))) == [1]
