"""Whether a dataset that was finished before is still whole, and who looks at the shards of an unfinished one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from counting_executor import Counting
from made_records import TARGET, MadeRecords

from preshard.packer_service.job import ownership as finishing
from preshard.packer_service.job.finish import finish
from preshard.packer_service.job.ownership import DatasetDamagedError, finished_before
from preshard.packer_service.job.stages import kept_shards
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.shards.store import Folder

RECORD = {"version": "1"}


class InAStore(Folder):
    """A folder that says of itself that it lies in an object store."""

    is_local = False


@pytest.fixture
def dataset(tmp_path: Path, progress: Any) -> Path:
    """A finished dataset of three shards."""
    made = MadeRecords(12)
    made.write(tmp_path)
    done = finish(
        Folder(str(tmp_path)), made, n_shards=3, config=made.config, target=TARGET, unread={}, carried=[],
        executor=PlainExecutor(), progress=progress,
    )  # type: ignore[arg-type] # fmt: skip
    done.write_manifest(Folder(str(tmp_path)))
    (tmp_path / "run.json").write_text(json.dumps({"job": RECORD}), encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "most_listed", "lost", "is_noticed"),
    [
        (Folder, 2, 1, True),
        (Folder, 3, 1, True),
        (InAStore, 3, 1, True),
        (InAStore, 2, 1, False),
        (InAStore, 2, 0, True),
    ],
)
def test_only_of_very_many_shards_in_a_store_some_are_asked(
    kind: type[Folder], most_listed: int, lost: int, is_noticed: bool, dataset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when shards that could all be looked at are passed over, or each of a million takes a request."""
    monkeypatch.setattr(finishing, "LISTED_SHARDS", most_listed)
    monkeypatch.setattr(finishing, "ASKED_SHARDS", 1)
    (dataset / "shards" / f"preshard-{lost:06d}.tar.idx").unlink()
    if is_noticed:
        with pytest.raises(DatasetDamagedError, match=rf"preshard-{lost:06d}\.tar\.idx is missing"):
            finished_before(kind(str(dataset)), RECORD)
    else:
        assert finished_before(kind(str(dataset)), RECORD) is not None


@pytest.mark.parametrize(("few_bytes", "by_tasks"), [(2048, False), (2047, True)])
def test_more_bytes_than_this_process_hashes_are_hashed_by_tasks(
    few_bytes: int, by_tasks: bool, tmp_path: Path, progress: Any
) -> None:
    """Fails when the bound of what one process hashes is off, or a shard that is gone counts towards it."""
    made = MadeRecords(8)
    made.write(tmp_path)
    (tmp_path / "shards" / "preshard-000001.tar").unlink()
    assert (tmp_path / "shards" / "preshard-000000.tar").stat().st_size == 2048
    executor = Counting()
    kept = kept_shards(Folder(str(tmp_path)), 2, executor=executor, few_bytes=few_bytes, progress=progress)
    assert kept.tolist() == [True, False]
    assert bool(executor.tasks) is by_tasks
