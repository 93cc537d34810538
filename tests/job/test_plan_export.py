"""``preshard plan --export`` writes the packs that packing makes, for those who tokenise themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from preshard.packer_service.cli.run import main
from preshard.packer_service.config import load_config
from preshard.packer_service.job.preview.export import EXPORTED
from preshard.packer_service.job.preview.lengths import plan_lengths

PLACED = ["pack_id", "start", "length", "aligned_length", "doc_id", "piece", "copy_number", "epoch"]


def _run(*words: str | Path) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    return int(ended.value.code or 0)


def test_the_exported_packs_are_those_that_are_packed(
    tiny_source: Path, tiny_dataset: Path, tiny_settings: list[str], tmp_path: Path
) -> None:
    """Fails when a document is lost, shares a pack with others or stands elsewhere than in the dataset, or ``file`` and
    ``line`` name another row.
    """
    settings = [word for setting in tiny_settings for word in ("--set", setting)]
    assert _run("plan", tiny_source, "--export", tmp_path / "plan.parquet", *settings) == 0
    found, packed = (pq.read_table(path) for path in (tmp_path / "plan.parquet", tiny_dataset / "documents.parquet"))
    assert found.schema == EXPORTED
    order = [("pack_id", "ascending"), ("start", "ascending")]
    assert found.select(PLACED).to_pylist() == packed.sort_by(order).select(PLACED).to_pylist()
    assert found["source"].to_pylist() == packed.sort_by(order)["source"].to_pylist()
    named = {row["doc_id"]: (row["file"], row["line"]) for row in found.to_pylist()}
    lines = (tiny_source / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    ids = {json.loads(line).get("id"): number for number, line in enumerate(lines[:-1], start=1)}
    for doc_id in ("text-3", "question-2", "annotated-1"):
        assert named[doc_id] == (str(tiny_source / "rows.jsonl"), ids[doc_id])
    assert not list(tmp_path.glob(".*")), "what was being written is left"


def test_a_dataset_is_exported_from_its_tables(tiny_dataset: Path, tmp_path: Path) -> None:
    """Fails when packing a dataset again, which reads no document, exports nothing or other documents."""
    file = tmp_path / "plan.parquet"
    assert _run("plan", tiny_dataset, "--export", file, "--set", "seq_len=4096") == 0
    found, packed = pq.read_table(file), pq.read_table(tiny_dataset / "documents.parquet")
    assert sorted(found["doc_id"].to_pylist()) == sorted(packed["doc_id"].to_pylist())
    assert found["file"].null_count == len(found)


def test_lengths_alone_are_exported_under_both_budgets(tmp_path: Path, progress: Callable[..., None]) -> None:
    """Fails when a pack exceeds a budget, documents overlap, or a line is missing or names another document."""
    n, file = 3_000, tmp_path / "plan.parquet"
    lengths = pa.table({
        "doc_id": [f"d{i}" for i in range(n)],
        "tokens": [1 + 37 * i % 900 for i in range(n)],
        "images": [i % 7 for i in range(n)],
    })  # fmt: skip
    pq.write_table(lengths, tmp_path / "lengths.parquet")
    config = load_config(None, ["seq_len=2048", "max_images=12", "ring_degrees=[1]"])
    report = plan_lengths(tmp_path / "lengths.parquet", config, progress, export=file, partition_rows=800)  # type: ignore[arg-type]
    found = pq.read_table(file)
    packs = found.group_by("pack_id").aggregate([("aligned_length", "sum"), ("images", "sum")])
    assert len(packs) == report.packs
    assert pc.max(packs["aligned_length_sum"]).as_py() <= 2048
    assert pc.max(packs["images_sum"]).as_py() <= 12
    assert sorted(found["line"].to_pylist()) == list(range(1, n + 1))
    assert lengths["doc_id"].take(pc.subtract(found["line"], 1)).equals(found["doc_id"])
    ends = {}
    for row in found.to_pylist():
        assert row["start"] == ends.get(row["pack_id"], 0)
        ends[row["pack_id"]] = row["start"] + row["aligned_length"]


def test_where_a_plan_cannot_be_written_is_said_at_once(
    tiny_source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails when hours of measuring come before the message, or a failed plan replaces the one that was there."""
    for file, said in (
        (tmp_path, f"--export {tmp_path}: is a folder; name a file, for example {tmp_path / 'plan.parquet'}"),
        (tmp_path / "no" / "plan.parquet", f"the folder {tmp_path / 'no'} does not exist"),
    ):
        assert _run("plan", tiny_source, "--export", file) == 2
        assert said in capsys.readouterr().err
    old = tmp_path / "plan.parquet"
    old.write_text("old")
    assert _run("plan", tmp_path / "nothing.jsonl", "--export", old) == 2
    assert old.read_text() == "old"
