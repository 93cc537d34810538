"""Rows that ``where`` leaves out: of every kind of source, counted by source, and expressions that are refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from repacked import Listener, packed, rejects

from preshard.packer_service.cli import main
from preshard.packer_service.report.dataset import report_dataset
from preshard.packer_service.verify import verify_dataset
from preshard.schemas.dataset.manifest_parts import decode_manifest
from preshard.schemas.errors import ConfigError

SETTINGS = ["seq_len=128", "block_size=16", "cp_sizes=[1]", "ring_degrees=[1]", "max_images=null"]
KEEP = "keep_columns={quality: float, licence: string}"
Row = dict[str, Any]
ROWS: list[Row] = [
    {
        "id": f"r{i:03}",
        "text": f"text number {i}",
        "source": "web" if i % 2 else "books",
        "quality": None if i % 10 == 9 else i / 200,
        "licence": "CC-BY" if i % 3 else "proprietary",
    }
    for i in range(200)
]
WHERE = "quality > 0.5 and Licence like 'CC%'"
GOOD = {row["id"] for row in ROWS if row["quality"] is not None and row["quality"] > 0.5 and row["licence"] == "CC-BY"}
LEFT_OUT = {
    name: sum(row["source"] == name and row["id"] not in GOOD for row in ROWS) for name in ("books", "web")
}  # fmt: skip


def ids(dataset: Path) -> set[str]:
    return set(pq.read_table(dataset / "documents.parquet")["doc_id"].to_pylist())


def check(dataset: Path) -> None:
    assert not verify_dataset(str(dataset), processes=1, progress=Listener()).broken
    assert ids(dataset) == GOOD
    assert not rejects(dataset)
    manifest = decode_manifest((dataset / "manifest.json").read_bytes(), "manifest.json")
    assert manifest.filtered == report_dataset(str(dataset)).filtered == LEFT_OUT
    assert manifest.counts.source_documents == len(GOOD)


def written(folder: Path, kind: str = "jsonl", rows: list[Row] = ROWS) -> Path:
    folder.mkdir(parents=True)
    if kind == "jsonl":
        (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    elif kind == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet", row_group_size=50)
    else:
        with (folder / "rows.csv").open("w", newline="") as file:
            to = csv.DictWriter(file, list(rows[0]))
            to.writeheader()
            to.writerows(rows)
    return folder


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "csv"])
def test_rows_are_chosen_in_every_container(tmp_path: Path, kind: str) -> None:
    """Fails when a row is kept or left out wrongly, is called a reject, or is not counted for its source."""
    where = WHERE if kind != "csv" else WHERE.replace("quality", "CAST(quality AS DOUBLE)")
    out = packed(written(tmp_path / "rows", kind), tmp_path / "out", [*SETTINGS, f"where={json.dumps(where)}"])
    check(out)


def test_documents_of_a_dataset_are_chosen_by_its_tables(tmp_path: Path) -> None:
    """Fails when a packed dataset is not chosen from by what its documents keep, or hands its own choice on."""
    everything = packed(written(tmp_path / "rows"), tmp_path / "out", [*SETTINGS, KEEP])
    chosen = packed(everything, tmp_path / "chosen", [f"where={json.dumps(WHERE)}"])
    check(chosen)
    again = packed(chosen, tmp_path / "again", ["seq_len=256"])
    assert ids(again) == GOOD
    assert json.loads((again / "manifest.json").read_text())["config"]["where"] is None
    by_length = packed(everything, tmp_path / "long", ["where=n_images = 0 and doc_id < 'r010'"])
    assert ids(by_length) == {f"r{i:03}" for i in range(10)}


def test_the_command_takes_the_expression(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails when --where is not what the configuration's key is, or the counts are not said."""
    settings = [word for setting in SETTINGS for word in ("--set", setting)]
    source, out = written(tmp_path / "rows"), tmp_path / "out"
    with pytest.raises(SystemExit, match="0"):
        main(["pack", str(source), "--out", str(out), "--where", WHERE, *settings])
    check(out)
    said = f"rows left out by --where, by source: web ({LEFT_OUT['web']}), books ({LEFT_OUT['books']})"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("qualty > 0.5", 'Referenced column "qualty" not found'),
        ("quality >", "syntax error"),
        ("quality > (SELECT count(*) FROM read_csv('/etc/passwd'))", "disabled by configuration"),
        ("text IN (SELECT content FROM read_text('http://127.0.0.1/x'))", "disabled by configuration"),
        ("count(*) > 3", "GROUP BY"),
        ("random() < 0.5", "random changes from run to run"),
        ("quality > 0.5 and now() > '2020-01-01'", "now changes from run to run"),
        ("current_date > '2020-01-01'", "current_date changes from run to run"),
    ],
)
def test_an_expression_that_cannot_be_asked_is_one_line(tmp_path: Path, where: str, words: str) -> None:
    """Fails when an expression reaches a file or the network, changes from run to run, or ends in a traceback."""
    with pytest.raises(ConfigError) as refused:
        packed(written(tmp_path / "rows"), tmp_path / "out", [*SETTINGS, f"where={json.dumps(where)}"])
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "changes from run to run" in str(refused.value) or str(refused.value).endswith(
        "rows.jsonl has id, text, source, quality, licence"
    )


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_a_column_of_lists_is_refused(tmp_path: Path, kind: str) -> None:
    """Fails when an expression over a list, which no row is asked with, leaves out every row in silence."""
    folder, rows = tmp_path / "rows", [{"input_ids": [1, 5, 6]}, {"input_ids": [1, 7]}]
    folder.mkdir()
    if kind == "jsonl":
        (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    else:
        pq.write_table(pa.Table.from_pylist(rows), folder / "rows.parquet")
    with pytest.raises(ConfigError, match=r"where 'len\(input_ids\) > 2': input_ids of rows.* holds lists or objects"):
        packed(folder, tmp_path / "out", [*SETTINGS, "where=len(input_ids) > 2"])


def test_a_row_that_cannot_be_compared_is_rejected(tmp_path: Path) -> None:
    """Fails when one value of another type ends the job, or decides about other rows."""
    rows = [*ROWS, {"id": "odd", "text": "words", "source": "web", "quality": "high", "licence": "CC-BY"}]
    where = "CAST(quality AS DOUBLE) > 0.5 and licence = 'CC-BY'"
    out = packed(written(tmp_path / "rows", rows=rows), tmp_path / "out", [*SETTINGS, f"where={json.dumps(where)}"])
    assert ids(out) == GOOD
    [reason] = rejects(out).values()
    assert "Could not convert string 'high' to DOUBLE" in reason
