"""Splits of folders, compared with those that ``datasets`` finds, and what a command says of them."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import pytest
from datasets.data_files import get_data_patterns, resolve_pattern

from preshard.packer_service.ingest.source.listing import list_sources
from preshard.packer_service.ingest.source.names import find_splits
from preshard.packer_service.job.preview.source import plan_sources
from preshard.packer_service.job.resolve import resolve
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError

TREES = [
    ["a.jsonl", "b.jsonl"],
    ["train.jsonl", "test.jsonl", "more.jsonl"],
    ["my-train-0.jsonl", "dev.jsonl", "latest.jsonl", "retrain.jsonl", "trainer.jsonl"],
    ["data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet", "data/test-00000-of-00001.parquet"],
    ["data/train_sft-00000-of-00001-a3ecf92756993583.parquet", "data/test_sft-00000-of-00001-a3ec.parquet", "x.jsonl"],
    ["train/0.jsonl", "validation/0.jsonl", "test.jsonl"],
    ["en/training_1/0.jsonl", "en/eval/0.jsonl", "fr/x.jsonl"],
    ["en/train-00000-of-00001.parquet", "fr/train-00000-of-00001.parquet"],
    ["test_images/rows.jsonl", "attest/rows.jsonl"],
]


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree[0])
def test_splits_are_those_that_datasets_finds(tree: list[str], tmp_path: Path) -> None:
    """Fails when a split that ``load_dataset`` finds is not found, or a file counts as one by part of a word."""
    for name in tree:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("{}")
    found = find_splits(tree)
    theirs: dict[str, str] = {}
    patterns = get_data_patterns(str(tmp_path))
    for split, of_split in patterns.items() if patterns != {"train": ["**"]} else ():
        for pattern in of_split:
            try:
                paths = resolve_pattern(pattern, str(tmp_path))
            except FileNotFoundError:
                continue
            theirs |= {str(Path(path).relative_to(tmp_path)): str(split) for path in paths}
    assert found == theirs


def test_a_saved_dict_is_packed_with_the_splits_that_were_asked_for(tmp_path: Path, progress: object) -> None:
    """Fails when a test split is packed in silence, or a split that is not there is."""
    rows = {
        name: datasets.Dataset.from_dict({"text": [name] * n}) for name, n in (("train", 4), ("held", 1), ("test", 2))
    }
    datasets.DatasetDict(rows).save_to_disk(tmp_path / "saved")
    source = str(tmp_path / "saved")

    def documents(split: str | None) -> int:
        config = PackConfig(split=split, seq_len=1024, layouts=("contiguous",), ring_degrees=(1,), cp_sizes=(1,))
        return plan_sources(resolve([source], config), PlainExecutor(), progress).documents  # type: ignore[arg-type]

    with pytest.raises(ConfigError, match=r"splits train \(1 file\), test \(1 file\), held \(1 file\); .*split=train,"):
        list_sources([source])
    assert [documents(split) for split in ("train", "held+test", "all")] == [4, 3, 7]
    with pytest.raises(ConfigError, match="no split 'dev'; it has train"):
        documents("dev")
    listed = list_sources([source], PackConfig(split="test"))
    assert "splits left out of saved: held (1 file), train (1 file)" in list(listed.notes())
    # whoever names a split's folder or files has said which
    assert len(list_sources([f"{source}/test"]).files) == 1
    assert len(list_sources([f"{source}/*/*.arrow"]).files) == 3


def test_a_file_names_the_source_of_its_rows(tmp_path: Path, tiny_config: PackConfig, progress: object) -> None:
    """Fails when parts of one file are two sources, or a row's own source goes before what was asked for."""
    for name in ("web.jsonl", "chat-00000-of-00002.jsonl", "chat-00001-of-00002.jsonl"):
        (tmp_path / name).write_text(json.dumps({"text": name, "source": "own"}) + "\n{}\n")
    config = tiny_config.model_copy(update={"source": "from_file", "mixture": (("chat", 2.0),)})
    report = plan_sources(resolve([str(tmp_path)], config), PlainExecutor(), progress)  # type: ignore[arg-type]
    assert {name: share.documents for name, share in report.shares.items()} == {"chat": 4, "web": 1}
    assert report.rejects_by_source == {"chat": {"bad_row": 2}, "web": {"bad_row": 1}}
