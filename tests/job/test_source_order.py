"""The same rows in another order, in other files, give the same shards."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from preshard.packer_service.ingest.media.reach import AllowedMedia
from preshard.packer_service.job.pack import pack
from preshard.packer_service.job.preview.source import plan_sources
from preshard.packer_service.job.resolve import resolve
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.runtime.progress import Progress
from preshard.schemas.config import PackConfig
from preshard.schemas.manifest import Manifest

ANSWER = {"role": "assistant", "content": "yes"}


def rows_of(source: Path) -> list[str]:
    """The rows of the tiny source that have an id, since others are named by their place; and rows that share one."""
    lines = (source / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines if line != "{not json"]
    rows += [{"id": "same", "text": f"one of three texts, {i % 3}"} for i in range(4)]
    rows += [{"id": f"same#{number}", "source": "text", "text": "a name that might be given"} for number in (2, 3)]
    return [json.dumps(row) for row in rows if "id" in row]


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
        assert manifest.counts.numbered == 2
        ids = pq.read_table(out / "documents.parquet").sort_by("doc_id")["doc_id"].unique().to_pylist()
        assert [name for name in ids if name.startswith("same")] == ["same", *(f"same#{n}" for n in (2, 3, 4, 5))]
        rejects = pq.read_table(out / "rejects.parquet").to_pylist()
        assert [row["code"] for row in rejects if row["doc_id"].startswith(("same", "text-1"))] == ["duplicate_row"] * 2
    assert shards[0] == shards[1]


def test_names_of_media_count_by_the_folder_that_they_are_relative_to(
    tiny_source: Path, tiny_config: PackConfig, tmp_path: Path, progress: Progress
) -> None:
    """Fails when rows of two folders that are alike but for their pictures are taken for equal, or one of them for two
    where their pictures are the same."""
    row = {"id": "same", "images": ["0.png"], "messages": [{"role": "user", "content": "<image>?"}, ANSWER]}
    for name, line in (("a", json.dumps(row)), ("b", json.dumps({**row, "metadata": None}))):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rows.jsonl").write_text(line, encoding="utf-8")
        (tmp_path / name / "0.png").symlink_to(tiny_source / "0.png")
    sources = [str(tmp_path / name / "rows.jsonl") for name in "ab"]
    (tmp_path / "none").mkdir()
    roots = [AllowedMedia(roots=((None, str(root)),)) for root in (tiny_source, tmp_path / "none")]
    for media, ids, rejected in ((None, 1, 0), (roots[0], 0, 1), (roots[1], 1, 0)):
        plan = plan_sources(resolve(sources, tiny_config, media), PlainExecutor(), progress)
        assert (plan.numbered, plan.rejected, plan.documents) == (ids, rejected, 1 + ids)
