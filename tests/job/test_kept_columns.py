"""Columns of the source that travel with documents: typed, stored twice alike, kept when packed again."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from repacked import Listener, packed, rejects, shards
from stored import documents

from preshard.packer_service.report.dataset import report_dataset
from preshard.packer_service.verify import verify_dataset
from preshard.schemas.errors import ConfigError
from preshard.trainer.data.dataset import PackedDataset

SETTINGS = ["seq_len=128", "block_size=16", "cp_sizes=[1]", "ring_degrees=[1]", "max_images=null"]
KEEP = "keep_columns={quality: float, licence: string, views: int, ok: bool}"
Row = dict[str, Any]
ROWS: list[Row] = [
    {"id": "a", "text": "some words", "quality": 0.75, "licence": "CC-BY", "views": 2**40, "ok": True},
    {"id": "b", "text": "other words", "quality": 1, "licence": "ünïcode", "views": 0, "ok": False},
    {"id": "c", "text": "no more words"},
]


def values(dataset: Path) -> dict[str, Row]:
    table = pq.read_table(dataset / "documents.parquet", columns=["doc_id", "licence", "ok", "quality", "views"])
    return {row.pop("doc_id"): row for row in table.to_pylist()}


def check(dataset: Path) -> Path:
    assert not verify_dataset(str(dataset), processes=1, progress=Listener()).broken
    assert report_dataset(str(dataset)).documents == 3
    return dataset


def written(folder: Path, kind: str) -> Path:
    folder.mkdir()
    if kind == "jsonl":
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(ROWS), folder / "rows.parquet")
    else:
        with (folder / "rows.csv").open("w", newline="") as file:
            to = csv.DictWriter(file, list(ROWS[0]))
            to.writeheader()
            to.writerows(ROWS)
    return folder


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv"])
def test_values_are_typed_in_the_table_the_head_and_the_batch(tmp_path: Path, kind: str) -> None:
    """Fails when a value is lost, is of another type than was asked for, or the three places do not agree."""
    out = check(packed(written(tmp_path / "rows", kind), tmp_path / "out", [*SETTINGS, KEEP]))
    expected = {row["id"]: {name: row.get(name) for name in ("licence", "ok", "quality", "views")} for row in ROWS}
    assert values(out) == expected
    schema = pq.read_schema(out / "documents.parquet")
    assert schema.names[-4:] == ["licence", "ok", "quality", "views"]
    assert schema.types[-4:] == [pa.string(), pa.bool_(), pa.float64(), pa.int64()]
    assert {span["doc_id"]: span["columns"] for span, _ in documents(out)} == expected
    [batch] = PackedDataset(out)
    assert {span.doc_id: span.columns for span in batch.documents} == expected
    assert [type(span.columns["quality"]) for span in batch.documents if span.doc_id == "b"] == [float]  # type: ignore[index]


def test_packing_again_keeps_values_or_some_of_them(tmp_path: Path) -> None:
    """Fails when values are lost or changed on the way, or a column that documents do not have is made up."""
    out = packed(written(tmp_path / "rows", "jsonl"), tmp_path / "out", [*SETTINGS, KEEP])
    again = check(packed(out, tmp_path / "again", ["seq_len=256"]))
    assert values(again) == values(out)
    assert shards(again) == shards(packed(tmp_path / "rows", tmp_path / "whole", [*SETTINGS, KEEP, "seq_len=256"]))
    fewer = check(packed(out, tmp_path / "fewer", ["keep_columns={quality: float}"]))
    assert pq.read_schema(fewer / "documents.parquet").names[-1] == "quality"
    none = check(packed(out, tmp_path / "none", ["keep_columns={}"]))
    assert pq.read_schema(none / "documents.parquet").names[-1] == "truncated_tokens"
    with pytest.raises(ConfigError, match=r"has no column quality of type int; it keeps licence \(string\), ok"):
        packed(out, tmp_path / "other", ["keep_columns={quality: int}"])


WRONG: list[tuple[str, Any, str]] = [
    ("quality", "high", "quality is 'high'; keep_columns asks for float"),
    ("quality", True, "quality is True; keep_columns asks for float"),
    ("quality", 10**400, "quality is 1000"),
    ("views", 1.5, "views is 1.5; keep_columns asks for int"),
    ("views", 2**63, f"views is {2**63}; keep_columns asks for int"),
    ("ok", 2, "ok is 2; keep_columns asks for bool"),
    ("licence", 3, "licence is a number, not a string"),
    ("licence", "x" * 8001, "licence has 8001 characters; documents keep at most 8000"),
    ("licence", ["x"], "licence is a list, not a string"),
]
"""Columns, values that are not of their types, and how the rejects begin."""


def test_a_value_of_another_type_rejects_the_row(tmp_path: Path) -> None:
    """Fails when a value is cast to what it is not, or ends the job."""
    (tmp_path / "rows").mkdir()
    wrong = [{"id": f"wrong-{n}", "text": f"words {n}", name: value} for n, (name, value, _) in enumerate(WRONG)]
    (tmp_path / "rows" / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*ROWS, *wrong]))
    said = rejects(check(packed(tmp_path / "rows", tmp_path / "out", [*SETTINGS, KEEP])))
    reasons = {f"wrong-{number}": reason for number, (*_, reason) in enumerate(WRONG)}
    assert {id_: said[id_][: len(reason)] for id_, reason in reasons.items()} == reasons


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ("{quality: double}", "keep_columns: quality is 'double'; legal are string, int, float, bool"),
        ("{source: string}", "keep_columns has 'source', which is a column of documents.parquet"),
    ],
)
def test_columns_that_cannot_be_kept_are_refused(tmp_path: Path, given: str, reason: str) -> None:
    """Fails when a kept column hides one that every dataset has."""
    with pytest.raises(ConfigError) as refused:
        packed(tmp_path, tmp_path / "out", [f"keep_columns={given}"])
    assert str(refused.value).startswith(reason)
