"""A table of packs that is too large to be read whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from made_records import TARGET, MadeRecords

from preshard.packer_service.job.finish import finish
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.shards.store import Folder
from preshard.schemas.errors import TableChanged
from preshard.trainer.data.files import DatasetFiles


@pytest.fixture
def dataset(tmp_path: Path, progress: Any) -> Path:
    """A dataset of nine packs that nobody packed."""
    made, folder = MadeRecords(9), tmp_path / "dataset"
    made.write(folder)
    done = finish(
        Folder(str(folder)), made, n_shards=made.n_shards, config=made.config, target=TARGET, unread={}, carried=[],
        executor=PlainExecutor(), progress=progress,
    )  # type: ignore[arg-type] # fmt: skip
    done.write_manifest(Folder(str(folder)))
    return folder


def test_a_large_table_is_known_by_its_size(dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a sound table is refused, a cut one is not, or its packs lie elsewhere than in a small one."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    files = DatasetFiles(dataset)
    whole = list(files.packs())
    monkeypatch.setattr("preshard.trainer.data.files.WHOLE_TABLE", 1000)
    assert list(files.packs()) == whole
    table = dataset / "packs.parquet"
    size = table.stat().st_size
    assert size > 1000
    table.write_bytes(table.read_bytes()[:-1])
    assert list(files.packs()) == whole, "this host has its places"
    (tmp_path / "other").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "other"))
    with pytest.raises(TableChanged, match=f"has {size - 1} bytes, not {size}"):
        files.packs()
