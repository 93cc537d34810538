"""Columns joined to a finished dataset: from every kind of table, kept apart, asked by ``where``, or refused."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest
from repacked import Listener, packed

from preshard.data import PackedDataset
from preshard.packer_service.cli import main
from preshard.packer_service.publish import annotate as module
from preshard.packer_service.publish.annotate import annotate
from preshard.packer_service.report.dataset import report_dataset
from preshard.packer_service.shards.lock import FolderInUseError, locked
from preshard.packer_service.shards.store import Folder
from preshard.packer_service.verify import verify_dataset
from preshard.schemas.errors import ConfigError

pytestmark = pytest.mark.process

SETTINGS = ["seq_len=64", "block_size=16", "cp_sizes=[1]", "ring_degrees=[1]", "max_images=null"]
FILE = "annotations.parquet"
N = 60
GIVEN: dict[str, list[Any]] = {
    "doc_id": [*(f"{i:03}" for i in range(0, N, 2)), "nowhere"],
    "quality": [*(None if i == 4 else i / N for i in range(0, N, 2)), 1.0],
    "n": [*range(0, N, 2), 0],
    "licence": [*("CC-BY, 4" if i % 4 else "MIT" for i in range(0, N, 2)), "MIT"],
    "day": [*(f"2024-01-{i % 28 + 1:02}" for i in range(0, N, 2)), "2024-01-01"],
    "zip": [*(f"{i:05}" for i in range(0, N, 2)), "00000"],
    "ok": [*(i % 4 == 0 for i in range(0, N, 2)), True],
}
TYPES = {"day": "string", "licence": "string", "n": "int64", "ok": "bool", "quality": "double", "zip": "string"}


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("annotated")
    rows = [{"id": f"{i:03}", "text": f"text number {i} " * (1 + i % 3), "q": i} for i in range(N)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return packed(folder / "rows.jsonl", folder / "out", [*SETTINGS, "keep_columns={q: int}"])


@pytest.fixture
def dataset(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "dataset"))


def written(folder: Path, kind: str, columns: dict[str, list[Any]]) -> str:
    path, table = folder / f"given.{kind}", pa.table(columns)
    if kind == "parquet":
        pq.write_table(table, path)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        delimiter = "\t" if kind == "tsv" else ","
        with pa.CompressedOutputStream(path, "gzip") if kind.endswith("gz") else pa.OSFile(str(path), "w") as sink:
            pa_csv.write_csv(table, sink, pa_csv.WriteOptions(delimiter=delimiter))
    return str(path)


def faults(dataset: Path) -> list[str]:
    verdict = verify_dataset(str(dataset), processes=1, progress=Listener())
    return [f"{fault.rule} {fault.detail}" for fault in verdict.broken]


@pytest.mark.parametrize("kind", ["parquet", "csv", "csv.gz", "tsv", "jsonl"])
def test_every_table_gives_the_same_columns(
    dataset: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a value, its type or its document differs by the table's kind, or a file of the dataset changes."""
    before = digests(dataset)
    monkeypatch.setattr(module, "GROUP_ROWS", 16)
    found = annotate(str(dataset), written(tmp_path, kind, GIVEN), on="doc_id")
    assert (found.documents, found.of_documents, found.unknown) == (N // 2, N, 1)
    assert {name: sha for name, sha in digests(dataset).items() if name != FILE} == before
    table = pq.read_table(dataset / FILE)
    documents = pq.read_table(dataset / "documents.parquet")
    assert len(set(documents["pack_id"].to_pylist())) > 2, "documents of several packs, in another order than the table"
    assert table.select(["doc_id", "pack_id"]).equals(documents.select(["doc_id", "pack_id"]))
    assert {field.name: str(field.type) for field in list(table.schema)[2:]} == TYPES
    wanted = {row["doc_id"]: row for row in pa.table(GIVEN).to_pylist()}
    for row in table.to_pylist():
        pack = row.pop("pack_id")
        nothing = {"doc_id": row["doc_id"], **dict.fromkeys(TYPES)}
        assert row == wanted.get(row["doc_id"], nothing), pack
    assert pq.ParquetFile(dataset / FILE).metadata.num_row_groups == -(-N // 16)
    assert not faults(dataset)


def test_the_same_table_gives_the_same_bytes(dataset: Path, tmp_path: Path) -> None:
    """Fails when the order of rows or of calls is seen in the bytes."""
    table = written(tmp_path, "parquet", GIVEN)
    annotate(str(dataset), table, on="doc_id")
    once = (dataset / FILE).read_bytes()
    (dataset / FILE).unlink()
    for columns in (["zip", "ok"], ["quality", "n", "licence", "day"]):
        annotate(str(dataset), table, on="doc_id", columns=columns)
    assert (dataset / FILE).read_bytes() == once
    reversed_rows = {name: values[::-1] for name, values in GIVEN.items()}
    annotate(str(dataset), written(tmp_path, "csv", reversed_rows), on="doc_id", replace=True)
    assert (dataset / FILE).read_bytes() == once


def test_columns_of_earlier_calls_stay_or_are_replaced(dataset: Path, tmp_path: Path) -> None:
    """Fails when a second table loses the columns of the first, or replaces one that nobody named."""
    annotate(str(dataset), written(tmp_path, "parquet", GIVEN), on="doc_id", columns=["quality", "n"])
    before = (dataset / FILE).read_bytes()
    other = written(tmp_path, "csv", {"name": ["001", "004"], "quality": ["good", "bad"]})
    with pytest.raises(ConfigError, match="has the annotation 'quality' already; give --replace"):
        annotate(str(dataset), other, on="name")
    assert (dataset / FILE).read_bytes() == before
    annotate(str(dataset), other, on="name", replace=True)
    rows = {row["doc_id"]: row for row in pq.read_table(dataset / FILE).to_pylist()}
    assert {doc_id: row["quality"] for doc_id, row in rows.items() if row["quality"]} == {"001": "good", "004": "bad"}
    assert [rows[f"{i:03}"]["n"] for i in range(6)] == [0, None, 2, None, 4, None]


def test_two_at_a_time_do_not_lose_columns(dataset: Path, tmp_path: Path) -> None:
    """Fails when the columns of one of two calls are gone in silence, or a lock is left behind."""
    table = written(tmp_path, "parquet", GIVEN)
    with locked(Folder(str(dataset / ".work"))), pytest.raises(FolderInUseError, match="another job is writing here"):
        annotate(str(dataset), table, on="doc_id")
    assert not (dataset / FILE).exists()
    annotate(str(dataset), table, on="doc_id")
    assert (dataset / FILE).exists()
    assert not (dataset / ".work").exists()


def test_where_asks_for_what_was_joined(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails when a new mixture does not see the columns, or continues with other ones than it began with."""
    table = written(tmp_path, "csv", GIVEN)
    with pytest.raises(ConfigError, match='"quality" not found'):
        packed(dataset, tmp_path / "none", ["where=quality > 0.5"])
    with pytest.raises(SystemExit, match="0"):
        main(["annotate", str(dataset), table])
    said = capsys.readouterr().out
    assert "day, licence, n, ok, quality, zip of 30 of 60 documents" in said
    assert f"1 row of {table} matches no packed document" in said
    out = packed(dataset, tmp_path / "good", ["where=quality > 0.5 and q < 50 and licence = 'MIT'"])
    good = {f"{i:03}" for i in range(0, N, 4) if i / N > 0.5 and i < 50}
    assert good
    assert set(pq.read_table(out / "documents.parquet")["doc_id"].to_pylist()) == good
    assert not faults(out)


def test_what_was_joined_is_reported_and_kept_by_later_datasets(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails when joined values are lost or of another document in a dataset packed from this one, or are not shown."""
    annotate(str(dataset), written(tmp_path, "parquet", GIVEN), on="doc_id")
    assert report_dataset(str(dataset)).annotations == {name: 30 - (name == "quality") for name in sorted(TYPES)}
    with pytest.raises(SystemExit, match="0"):
        main(["report", str(dataset)])
    assert "columns joined later, by documents that have a value: day (30), " in capsys.readouterr().out
    keep = "keep_columns={q: int, quality: float, licence: string, ok: bool, n: int}"
    for out, again in ((tmp_path / "new", []), (tmp_path / "long", ["seq_len=128", "where=q < 50"])):
        packed(dataset, out, [keep, *again])
        assert not faults(out)
        spans = {span.doc_id: span.columns for batch in PackedDataset(str(out)) for span in batch.documents}
        assert len(spans) == (50 if again else N)
        for doc_id, columns in spans.items():
            row = GIVEN["doc_id"].index(doc_id) if doc_id in GIVEN["doc_id"] else None
            joined = {name: None if row is None else GIVEN[name][row] for name in ("quality", "licence", "ok", "n")}
            assert columns == {"q": int(doc_id), **joined}
    with pytest.raises(ConfigError, match="has no column quality of type int"):
        packed(dataset, tmp_path / "other", ["keep_columns={quality: int}"])
    assert packed(dataset, tmp_path / "as it was", [])
    assert "quality" not in pq.read_schema(tmp_path / "as it was" / "documents.parquet").names


def test_a_job_does_not_go_on_with_other_annotations(dataset: Path, tmp_path: Path) -> None:
    """Fails when some packs of a stopped job would follow the columns before a change, and others those after it."""
    annotate(str(dataset), written(tmp_path, "csv", GIVEN), on="doc_id", columns=["n"])
    out, settings = tmp_path / "out", ["where=n > 3"]
    started = packed(dataset, out, settings)
    annotate(str(dataset), written(tmp_path, "csv", {"doc_id": ["001"], "n": [9]}), on="doc_id", replace=True)
    with pytest.raises(ConfigError, match=r"the annotations [0-9a-f]{12}, now .* the annotations [0-9a-f]{12}\)"):
        packed(dataset, started, settings)
    assert packed(dataset, tmp_path / "whole", ["seq_len=64"])


def test_annotations_of_another_dataset_are_no_source(made: Path, dataset: Path, tmp_path: Path) -> None:
    """Fails when columns of other documents decide what is packed."""
    other = packed(made, tmp_path / "other", ["seq_len=128"])
    annotate(str(other), written(tmp_path, "csv", GIVEN), on="doc_id")
    shutil.copy(other / FILE, dataset / FILE)
    refused = "annotations.parquet is for the dataset_id"
    with pytest.raises(ConfigError, match=refused):
        packed(dataset, tmp_path / "out", ["where=quality > 0.5"])
    with pytest.raises(ConfigError, match=refused):
        annotate(str(dataset), written(tmp_path, "csv", GIVEN), on="doc_id")
    assert {fault.partition(" ")[0] for fault in faults(dataset)} == {"D12"}


REFUSED: dict[str, tuple[dict[str, list[Any]], str]] = {
    "id twice": ({"doc_id": ["001", "001"], "a": [1, 2]}, "doc_id '001' has 2 rows"),
    "no id": ({"doc_id": ["001", None], "a": [1, 2]}, "doc_id is null in 1 row; leave them out"),
    "no such id": (
        {"doc_id": ["1"], "a": [1]},
        "its 1 id, such as '1', against documents such as '0",
    ),
    "no such column": ({"id": ["001"], "a": [1]}, "has no column 'doc_id', only id, a; --on COLUMN names the one"),
    "only ids": ({"doc_id": ["001"]}, "has no column besides 'doc_id'"),
    "a list": ({"doc_id": ["001"], "a": [[1]]}, "a has the type list<.*; legal are .* leave it out with --column"),
    "infinite": ({"doc_id": ["001"], "a": [float("inf")]}, "a holds an infinite number"),
    "of documents": ({"doc_id": ["001"], "Length": [1]}, "has the column 'Length', which the documents have already"),
    "kept": ({"doc_id": ["001"], "q": [1]}, "has the column 'q', which the documents have already"),
    "a name": ({"doc_id": ["001"], "a b": [1]}, "'a b' is not a legal name; use at most 100 letters"),
    "too large": ({"doc_id": ["001"], "a": pa.array([2**64 - 1], pa.uint64())}, "a: .*18446744073709551615"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_table_that_cannot_be_joined_is_refused(dataset: Path, tmp_path: Path, case: str) -> None:
    """Fails when a value is lost or changed in silence, or a refused table leaves a file."""
    columns, words = REFUSED[case]
    before = digests(dataset)
    with pytest.raises(ConfigError, match=words) as refused:
        annotate(str(dataset), written(tmp_path, "parquet", columns), on="doc_id")
    assert "\n" not in str(refused.value)
    assert digests(dataset) == before


def _edited(table: pa.Table, dataset: Path) -> None:
    pq.write_table(table, dataset / FILE, write_page_checksum=True)


DAMAGED: dict[str, tuple[Callable[[pa.Table], pa.Table], str]] = {
    "unknown id": (lambda table: _set_id(table, "nowhere"), "row 3 has the doc_id 'nowhere', where documents.parquet"),
    "id twice": (lambda table: _set_id(table, table["doc_id"][0].as_py()), "row 3 has the doc_id"),
    "a row too few": (lambda table: table.slice(1), f"has {N - 1} rows; documents.parquet has {N}"),
    "a column again": (
        lambda table: table.append_column("q", table["n"]),
        "has the column 'q', which the documents have already",
    ),
    "no metadata": (lambda table: table.replace_schema_metadata(None), "is for the dataset_id ''; the dataset has"),
}


def _set_id(table: pa.Table, doc_id: str) -> pa.Table:
    ids = table["doc_id"].to_pylist()
    return table.set_column(0, table.schema.field("doc_id"), [[*ids[:3], doc_id, *ids[4:]]])


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_annotations_break_their_rule(dataset: Path, tmp_path: Path, case: str) -> None:
    """Fails when verify takes annotations for sound that are not of these documents."""
    annotate(str(dataset), written(tmp_path, "csv", GIVEN), on="doc_id")
    damage, words = DAMAGED[case]
    _edited(damage(pq.read_table(dataset / FILE)), dataset)
    found = faults(dataset)
    assert any(words in fault for fault in found), found
    assert {fault.partition(" ")[0] for fault in found} == {"D12"}


def test_a_changed_byte_is_found(dataset: Path, tmp_path: Path) -> None:
    """Fails when values that a disk has changed are taken for those that were written: no manifest has their hash."""
    annotate(str(dataset), written(tmp_path, "csv", GIVEN), on="doc_id", columns=["n"])
    column = pq.ParquetFile(dataset / FILE).metadata.row_group(0).column(2)
    data = bytearray((dataset / FILE).read_bytes())
    data[column.data_page_offset + column.total_compressed_size // 2] ^= 1
    (dataset / FILE).write_bytes(data)
    [fault] = faults(dataset)
    assert fault.startswith("D12 cannot be read as Parquet (")
