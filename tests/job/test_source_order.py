"""The same rows in another order, in other files, give the same shards."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from preshard.packer_service.job.pack import pack
from preshard.packer_service.job.preview import plan_sources
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.runtime.progress import Progress
from preshard.schemas.config import PackConfig
from preshard.schemas.manifest import Manifest


def rows_of(source: Path) -> list[str]:
    """The rows of the tiny source that have an id of their own, since other ids name a place."""
    lines = (source / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line != "{not json"]
    ids = [row.get("id") for row in rows]
    return [json.dumps(row) for row in rows if ids.count(row.get("id")) == 1 and "id" in row]


def split_in_two(folder: Path, source: Path, rows: list[str]) -> list[str]:
    folder.mkdir()
    for image in source.glob("*.png"):
        (folder / image.name).symlink_to(image)
    for name, part in (("z.jsonl", rows[:7]), ("a.jsonl", rows[7:])):
        (folder / name).write_text("\n".join(part), encoding="utf-8")
    return [str(folder / "z.jsonl"), str(folder / "a.jsonl")]


@pytest.mark.parametrize("oversize", ["reject", "split"])
def test_shards_do_not_depend_on_the_order_of_the_source(
    oversize: str, tiny_source: Path, tiny_config: PackConfig, tmp_path: Path, progress: Progress
) -> None:
    """Fails when a tie between documents of one size, or their order in a pack, is broken by where a row lies."""
    # one layout that is not searched for: layouts follow from a pack's arrays, which are compared
    config = tiny_config.model_copy(update={"oversize": oversize, "max_images": 4, "layouts": ("zigzag",)})
    rows = rows_of(tiny_source)
    shards = []
    for seed in range(2):
        random.Random(seed).shuffle(rows)
        sources = split_in_two(tmp_path / f"source-{seed}", tiny_source, rows)
        out = tmp_path / f"dataset-{seed}"
        pack(sources, str(out), config, PlainExecutor(), progress)
        manifest = Manifest.model_validate_json((out / "manifest.json").read_bytes())
        shards.append([(shard.name, shard.sha256) for shard in manifest.shards])
        assert manifest.counts.packs > 4
    assert shards[0] == shards[1]


def test_of_two_rows_with_one_id_the_earlier_source_is_packed(
    tiny_config: PackConfig, tmp_path: Path, progress: Progress
) -> None:
    """Fails when which of two documents wins follows from their hash, or from the names of the files."""
    for name, text in (("a.jsonl", "short"), ("b.jsonl", "a text of more tokens than the other one")):
        (tmp_path / name).write_text(json.dumps({"id": "same", "text": text}), encoding="utf-8")
    found = [
        plan_sources([str(tmp_path / name) for name in names], tiny_config, PlainExecutor(), progress)
        for names in (("a.jsonl", "b.jsonl"), ("b.jsonl", "a.jsonl"))
    ]
    assert found[0].tokens < found[1].tokens
    assert [report.rejected for report in found] == [1, 1]
