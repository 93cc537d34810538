"""A corrupt dataset for every rule of the folder: the manifest, the tables, and what they say together."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from changed_places import add, put

from preshard.packer_service.publish.annotate import annotate as join_columns
from preshard.schemas.errors import FORMAT_RULES
from preshard.schemas.tables import TABLES

breaks = pytest.mark.breaks
REJECTS = "rejects.parquet"


def test_a_broken_rule_is_named(
    rule: str, also: tuple[str, ...], corrupt: Callable[[Any], None], editable: Any, assert_breaks: Callable[..., Any]
) -> None:
    """Fails when a fault of the folder is not found, is named as another, or hides behind others."""
    corrupt(editable)
    assert_breaks(editable, rule, *also)


def test_every_rule_of_the_folder_has_a_case(corrupt_rules: set[str]) -> None:
    """Fails when a rule is added without a corrupt dataset that raises it."""
    assert corrupt_rules == {rule for rule in FORMAT_RULES if rule.startswith("D")}


@breaks("D2")
def hash_of_no_chat_template(data: Any) -> None:
    tokenizer = {**data.manifest["tokenizer"], "chat_template_sha256": "none"}
    data.write_manifest({**data.manifest, "tokenizer": tokenizer})


@breaks("D2")
def manifest_without_a_field(data: Any) -> None:
    data.write_manifest({name: value for name, value in data.manifest.items() if name != "tokenizer"})


@breaks("D2")
def manifest_with_a_number_that_no_table_holds(data: Any) -> None:
    data.manifest["counts"]["tokens"] = 2**63
    data.write_manifest(data.manifest)


@breaks("D2")
def manifest_changed_after_it_was_sealed(data: Any) -> None:
    path = data.path / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"rows.jsonl", b"rows.jsonk"))


@breaks("D2")
def configuration_that_is_not_legal(data: Any) -> None:
    data.manifest["config"]["seq_len"] = 1025
    data.write_manifest(data.manifest)


@breaks("D2")
def configuration_with_a_key_left_to_its_default(data: Any) -> None:
    del data.manifest["config"]["jpeg_quality"]
    data.write_manifest(data.manifest)


@breaks("D2", "D14")
def token_outside_of_the_vocabulary(data: Any) -> None:
    data.manifest["tokenizer"]["eos_id"] = data.manifest["tokenizer"]["vocab_size"]
    data.seal()


@breaks("D2")
def manifest_that_lists_a_table_twice(data: Any) -> None:
    data.manifest["tables"].append(data.manifest["tables"][0])
    data.write_manifest(data.manifest)


def carry(data: Any, name: str, content: bytes, *, written: bytes | None) -> None:
    """Lists a file of the tokenizer or the model, and writes it unless nothing is ``written``."""
    entry = {"name": name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    data.manifest["carried"].append(entry)
    if written is not None:
        (data.path / "model").mkdir()
        (data.path / "model" / name).write_bytes(written)


@breaks("D2")
def carried_file_outside_of_its_folder(data: Any) -> None:
    carry(data, "../manifest.json", b"{}", written=None)
    data.write_manifest(data.manifest)


@breaks("D2")
def carried_code(data: Any) -> None:
    carry(data, "tokenization.py", b"", written=b"")
    data.write_manifest(data.manifest)


@breaks("D2")
def carried_files_of_an_older_version(data: Any) -> None:
    data.write_manifest({**data.manifest, "format_version": 2})


@breaks("D7", "D14")
def file_beside_the_carried_ones(data: Any) -> None:
    carry(data, "config.json", b"{}", written=b"{}")
    (data.path / "model" / "added_tokens.json").write_bytes(b"{}")
    data.seal()


@breaks("D3")
def dataset_id_of_another_plan(data: Any) -> None:
    data.manifest["dataset_id"] = "0123456789abcdef" * 4
    data.seal(new_id=False)


@breaks("D3")
def fewer_source_documents_than_the_tables_hold(data: Any) -> None:
    data.manifest["counts"]["source_documents"] -= 1
    data.manifest["counts"]["rejected"] -= 1
    data.seal()


@breaks("D3", "S5", "S6", "P17")
def shard_that_begins_with_the_pack_of_another(data: Any) -> None:
    data.manifest["shards"][1]["first_pack"] += 1
    data.seal()


@breaks("D3")
def shard_under_another_name(data: Any) -> None:
    name = data.manifest["shards"][0]["name"]
    for suffix in ("", ".idx"):
        (data.path / "shards" / f"{name}{suffix}").rename(data.path / "shards" / f"mine.tar{suffix}")
    data.manifest["shards"][0]["name"] = "mine.tar"
    for row in data.tables["packs.parquet"]:
        row["shard"] = "mine.tar" if row["shard"] == name else row["shard"]
    data.save()


@breaks("D5")
def table_with_another_hash(data: Any) -> None:
    table = pa.Table.from_pylist(data.tables["documents.parquet"], schema=TABLES["documents.parquet"])
    pq.write_table(table, data.path / "documents.parquet", compression="none")


@breaks("D5")
def table_with_fewer_rows_than_the_manifest_says(data: Any) -> None:
    for entry in data.manifest["tables"]:
        entry["rows"] += entry["name"] in (REJECTS, "measures.parquet")
    data.seal()


def write_figures(data: Any, content: bytes) -> None:
    """Writes the figures' file, and its size and hash into the manifest."""
    (data.path / "figures.json").write_bytes(content)
    data.manifest["figures"] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    data.seal()


@breaks("D13")
def figures_that_are_missing(data: Any) -> None:
    (data.path / "figures.json").unlink()


@breaks("D13")
def figures_that_are_cut_off(data: Any) -> None:
    (data.path / "figures.json").write_bytes((data.path / "figures.json").read_bytes()[:-1])


@breaks("D13")
def figures_changed_after_the_manifest(data: Any) -> None:
    content = (data.path / "figures.json").read_bytes()
    (data.path / "figures.json").write_bytes(content.replace(b'"fill":0', b'"fill":1'))


@breaks("D13")
def figures_that_are_no_json(data: Any) -> None:
    write_figures(data, b"fill: 1")


@breaks("D13")
def figures_without_a_field(data: Any) -> None:
    figures = json.loads((data.path / "figures.json").read_bytes())
    write_figures(data, json.dumps({name: figures[name] for name in figures if name != "lengths"}).encode())


@breaks("D13")
def figures_without_a_layout(data: Any) -> None:
    figures = json.loads((data.path / "figures.json").read_bytes())
    del figures["balance"]["zigzag"]
    write_figures(data, json.dumps(figures).encode())


@breaks("D13")
def figures_with_one_number_that_the_tables_do_not_give(data: Any) -> None:
    figures = json.loads((data.path / "figures.json").read_bytes())
    [*_, layout] = figures["balance"]["zigzag"].values()
    layout["ring_path"]["p95"] += 1e-9
    write_figures(data, json.dumps(figures).encode())


@breaks("D6")
def table_that_is_not_parquet(data: Any) -> None:
    data.write_table_bytes("packs.parquet", b"PAR1 but no more", len(data.tables["packs.parquet"]))
    data.seal()


@breaks("D6")
def measures_that_is_not_parquet(data: Any) -> None:
    data.write_table_bytes("measures.parquet", b"PAR1 but no more", len(data.tables["measures.parquet"]))
    data.seal()


@breaks("D6")
def measures_in_other_row_groups(data: Any) -> None:
    table = pa.Table.from_pylist(data.tables["measures.parquet"], schema=TABLES["measures.parquet"])
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    data.write_table_bytes("measures.parquet", buffer.getvalue(), len(table))
    data.seal()


@breaks("D6")
def table_with_another_column(data: Any) -> None:
    table = pq.read_table(data.path / REJECTS)
    data.write_table(REJECTS, table.append_column("more", pa.nulls(len(table), pa.int64())))
    data.seal()


@breaks("D6")
def table_with_a_column_of_another_type(data: Any) -> None:
    table = pq.read_table(data.path / "measures.parquet")
    data.write_table(
        "measures.parquet", table.set_column(3, "attention_tiles", table["attention_tiles"].cast(pa.float64()))
    )
    data.seal()


@breaks("D6")
def text_that_is_not_unicode(data: Any) -> None:
    buffer = io.BytesIO()
    table = pa.Table.from_pylist(data.tables[REJECTS], schema=TABLES[REJECTS])
    broken = pa.array([b"\xff\xfe"] * len(table), pa.binary()).view(pa.string())
    pq.write_table(table.set_column(5, TABLES[REJECTS].field(5), broken), buffer)
    data.write_table_bytes(REJECTS, buffer.getvalue(), len(table))
    data.seal()


@breaks("D8")
def document_packed_twice(data: Any) -> None:
    one, other = (data.sample_where(lambda s, n=n: s.head["pack_id"] == n) for n in (0, 1))
    here, there = one.head["documents"][0], other.head["documents"][0]["doc_id"]
    for image in one.head["images"]:
        image["doc_id"] = there if image["doc_id"] == here["doc_id"] else image["doc_id"]
    here["doc_id"] = there
    data.relist()
    data.manifest["counts"]["source_documents"] -= 1
    data.manifest["counts"]["rejected"] -= 1
    data.save()


def _reject(data: Any, **values: str) -> None:
    data.tables[REJECTS].append({**data.tables[REJECTS][0], "stage": "read", "code": "bad_row", **values})
    data.manifest["counts"]["source_documents"] += 1
    data.manifest["counts"]["rejected"] += 1
    data.save()


@breaks("D8", "D10")
def copies_of_a_document_in_one_pack(data: Any) -> None:
    """Puts two copies of a document into one pack, under one id and two numbers, so that neither is packed twice."""
    sample = data.sample_where(lambda s: len(s.head["documents"]) > 1)
    one, other = sample.head["documents"][:2]
    for image in sample.head["images"]:
        image["doc_id"] = one["doc_id"] if image["doc_id"] == other["doc_id"] else image["doc_id"]
    other.update(doc_id=one["doc_id"], copy_number=1)
    data.relist()
    data.manifest["counts"]["source_documents"] -= 1
    data.manifest["counts"]["rejected"] -= 1
    data.save()


@breaks("D8")
def document_packed_and_rejected(data: Any) -> None:
    _reject(data, doc_id=data.tables["documents.parquet"][0]["doc_id"])


@breaks("D9")
def reject_lost(data: Any) -> None:
    data.tables[REJECTS] = [row for row in data.tables[REJECTS] if row["doc_id"] != "bad-empty"]
    data.save()


@breaks("D9")
def document_lost_from_its_pack(data: Any) -> None:
    sample = data.sample_where(lambda s: s.head["documents"][-1]["n_images"] == 0)
    span = sample.head["documents"].pop()
    inside = slice(span["start"], span["start"] + span["length"])
    inert = {
        "tokens": data.manifest["tokenizer"]["pad_id"],
        "labels": -100,
        "doc_ids": -1,
        "group_ids": -1,
        "pool_ids": -1,
    }
    for name, array in sample.sequence.items():
        array[..., inside] = inert.get(name, 0)
    data.zigzag(sample)
    data.derive(sample)
    data.relist()
    data.save()


@breaks("D9")
def duplicate_of_a_document_that_is_nowhere(data: Any) -> None:
    row = next(row for row in data.tables[REJECTS] if row["code"] == "duplicate_row")
    row["doc_id"] = "nobody"
    data.save()


@breaks("D9")
def first_piece_of_a_document_lost(data: Any) -> None:
    data.samples()[0].head["documents"][0]["piece"] = 1
    data.relist()
    data.save()


@breaks("D10")
def documents_out_of_order(data: Any) -> None:
    rows = data.tables["documents.parquet"]
    rows[0], rows[1] = rows[1], rows[0]
    data.save()


@breaks("D10")
def packs_of_documents_out_of_order(data: Any) -> None:
    rows = data.tables["documents.parquet"]
    last = [row for row in rows if row["pack_id"] == rows[-1]["pack_id"]]
    data.tables["documents.parquet"] = last + rows[: -len(last)]
    data.save()


@breaks("D10")
def document_more_in_a_pack_that_does_not_exist(data: Any) -> None:
    rows, counts = data.tables["documents.parquet"], data.manifest["counts"]
    rows.append({**rows[-1], "doc_id": "more", "pack_id": 1000, "truncated_tokens": 0})
    for name in ("source_documents", "documents", "pieces"):
        counts[name] += 1
    data.save()


@breaks("D10")
def document_in_a_pack_that_does_not_exist(data: Any) -> None:
    data.tables["documents.parquet"][-1]["pack_id"] = 1000
    data.save()


def annotate(data: Any, change: Callable[[pa.Table], pa.Table]) -> None:
    """Writes sound annotations, as ``preshard annotate`` does, and then changes them."""
    ids = sorted({row["doc_id"] for row in data.tables["documents.parquet"]})
    given = data.path.parent / "given.parquet"
    pq.write_table(pa.table({"doc_id": ids, "quality": [float(i) for i in range(len(ids))]}), given)
    join_columns(str(data.path), str(given), on="doc_id")
    name = data.path / "annotations.parquet"
    pq.write_table(change(pq.read_table(name)), name)


@breaks("D12")
def annotations_of_another_dataset(data: Any) -> None:
    annotate(data, lambda table: table.replace_schema_metadata({"preshard.dataset_id": "0" * 64}))


@breaks("D12")
def annotations_of_a_document_that_is_not_packed(data: Any) -> None:
    annotate(data, lambda table: table.set_column(0, "doc_id", [["unknown", *table["doc_id"].to_pylist()[1:]]]))


@breaks("D12")
def annotations_of_one_document_twice(data: Any) -> None:
    annotate(data, lambda table: pa.concat_tables([table, table.slice(0, 1)]))


@breaks("D12")
def annotations_with_a_column_of_the_documents(data: Any) -> None:
    annotate(data, lambda table: table.append_column("length", [[1] * len(table)]))


@breaks("D12")
def annotations_with_a_number_that_is_not_finite(data: Any) -> None:
    annotate(data, lambda table: table.set_column(2, "quality", [[float("nan")] * len(table)]))


@breaks("D12")
def annotations_that_are_no_table(data: Any) -> None:
    (data.path / "annotations.parquet").write_bytes(b"doc_id,quality\n")


def test_faults_of_one_rule_are_listed_twenty_times_and_counted_beyond(editable: Any, assert_breaks: Any) -> None:
    """Fails when a fault in every row floods the verdict, or when those left out are not counted."""
    for row in editable.tables["documents.parquet"]:
        row["source"] = "elsewhere"
    editable.save()
    verdict = assert_breaks(editable, "D10")
    shard = verdict.broken[0].file
    assert sum(fault.file == shard for fault in verdict.broken) <= 20
    total = len(verdict.broken) + sum(verdict.unlisted.values())
    assert total == len(editable.tables["documents.parquet"]) > 20
    assert json.loads(json.dumps(verdict.as_json()))["sound"] is False


def numbered_copy(data: Any) -> None:
    """A document that is taken once, as its second copy."""
    span = data.samples()[0].head["documents"][0]
    data.manifest["config"]["mixture"] = {span["source"]: 2.0}
    elsewhere(data, "copy_number")


def elsewhere(data: Any, name: str) -> None:
    """Says of a document that it is of another copy or epoch than there is."""
    data.samples()[0].head["documents"][0][name] = 1
    data.relist()


CASES = [
    ("D1", "no manifest", lambda data: (data.path / "manifest.json").unlink()),
    ("D2", "manifest is not json", lambda data: (data.path / "manifest.json").write_bytes(b"{")),
    ("D2", "manifest is nested too deeply", lambda data: (data.path / "manifest.json").write_bytes(b"[" * 100000)),
    ("D2", "manifest of another version", lambda data: data.write_manifest({**data.manifest, "format_version": 4})),
    ("D2", "manifest of the first format", lambda data: data.write_manifest({**data.manifest, "format_version": 1})),
    ("D2", "manifest with an unknown field", lambda data: data.write_manifest({**data.manifest, "more": 1})),
    ("D4", "missing table", lambda data: (data.path / REJECTS).unlink()),
    ("D4", "missing measures", lambda data: (data.path / "measures.parquet").unlink()),
    ("D7", "file of somebody else", lambda data: (data.path / "shards" / "notes.txt").write_text("mine")),
    ("D7", "file that a killed job left", lambda data: (data.path / ".tmp-0123-packs.parquet").write_bytes(b"")),
    ("D8", "document rejected twice", lambda data: _reject(data, doc_id="bad-empty")),
]


SEALED = [
    *(
        (
            ("D14", "P4"),
            f"tokenizer of another {name}",
            lambda data, name=name, value=value: put(data.manifest["tokenizer"], name, value),
        )
        for name, value in (
            *(("bos_id", 3), ("bos_id", None), ("eos_id", 3), ("pad_id", 3), ("vocab_size", 2**18)),
            *(("name", "other"), ("chat_template_sha256", "0" * 64)),
        )
    ),
    ("D11", "carried file that is missing", lambda data: carry(data, "config.json", b"{}", written=None)),
    ("D11", "carried file that changed", lambda data: carry(data, "config.json", b"{}", written=b"[]")),
    ("D11", "carried tokenizer of another dataset", lambda data: carry(data, "tokenizer.json", b"{}", written=b"{}")),
    ("D3", "more tokens counted than there are", lambda data: add(data.manifest["counts"], "tokens", 1)),
    ("D3", "duplicates that were not rejected", lambda data: add(data.manifest["counts"], "duplicates", 1)),
    ("D3", "numbers that no id has", lambda data: put(data.manifest["counts"], "numbered", 1)),
    ("D3", "documents and rejected that are not all", lambda data: add(data.manifest["counts"], "rejected", 1)),
    (("D3", "S5", "S6"), "shard that is not full", lambda data: add(data.manifest["shards"][0], "packs", -1)),
    ("D3", "shards of fewer packs than configured", lambda data: add(data.manifest["config"], "packs_per_shard", 1)),
    ("D3", "phases without a curriculum", lambda data: put(data.manifest, "phases", [0])),
]


SAVED = [
    ("D6", "reject without a code", lambda data: put(data.tables[REJECTS][0], "code", None)),
    ("D6", "reject with an unknown code", lambda data: put(data.tables[REJECTS][0], "code", "ugly")),
    ("D10", "document of another source", lambda data: put(data.tables["documents.parquet"][0], "source", "elsewhere")),
    ("D9", "documents that are not in each epoch", lambda data: put(data.manifest["config"], "epochs", 2)),
    ("D9", "copy without those before it", numbered_copy),
    ("D10", "document of an epoch that is not taken", lambda data: elsewhere(data, "epoch")),
    ("D10", "document of a copy that is not taken", lambda data: elsewhere(data, "copy_number")),
    (("D10", "D9", "D3"), "document left out of the table", lambda data: data.tables["documents.parquet"].pop()),
]
