"""Media that a node of a cluster does not see."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from stored import file_bytes

from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor, TaskError
from preshard.schemas.config import PackConfig


class BlindNode(PlainExecutor):
    """A node that does not see a file."""

    node = "10.0.0.3 (gpu7)"

    def __init__(self, hidden: Path) -> None:
        self.hidden = hidden

    def require(self, make_proof: Callable[[], Any]) -> None: ...

    def run(self, function: Callable[..., Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        for index, item in enumerate(items):
            away = self.hidden.rename(self.hidden.with_suffix(".away"))
            found = function(item)
            away.rename(self.hidden)
            yield index, found


def test_media_that_the_driver_reads_are_no_rows_fault(
    tiny_source: Path, tiny_config: PackConfig, tiny_dataset: Path, tmp_path: Path, progress: Any
) -> None:
    """Fails when rows are rejected, by chance, for what the node does not see that they were sent to; or when the next
    run takes over what it found.
    """
    source, out = tmp_path / "tiny", tmp_path / "out"
    shutil.copytree(tiny_source, source)
    said = (
        r"node 10\.0\.0\.3 \(gpu7\): .*0\.png: no such file.*, though the driver reads it .*rows\.jsonl, question-0\)"
    )
    with pytest.raises(TaskError, match=said):
        pack([str(source)], str(out), tiny_config, BlindNode(source / "0.png"), progress)
    pack([str(source)], str(out), tiny_config, PlainExecutor(), progress)
    assert file_bytes(out) == file_bytes(tiny_dataset)


def test_media_that_are_missing_are_the_rows_fault(tiny_config: PackConfig, tmp_path: Path, progress: Any) -> None:
    """Fails when a job on a cluster ends for a row whose picture is nowhere."""
    (tmp_path / "other.txt").touch()
    rows = [{"id": "good", "text": "a"}, {"id": "lost", "text": "<image>", "images": ["nowhere.png"]}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    done = pack(
        [str(tmp_path / "rows.jsonl")], str(tmp_path / "out"), tiny_config, BlindNode(tmp_path / "other.txt"), progress
    )
    assert (done.manifest.counts.documents, done.manifest.counts.rejected) == (1, 1)
