"""Shards that the folder lists and that the process which checks them cannot find."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from preshard.packer_service.shards.store import Folder
from preshard.packer_service.verify import verify_dataset

pytestmark = pytest.mark.process  # the dataset is made by a job


def test_a_shard_that_vanishes_while_it_is_verified_is_no_sound_one(
    tiny_dataset: Path, monkeypatch: pytest.MonkeyPatch, progress: Any
) -> None:
    """Fails when a dataset is called sound of which some shard was not read."""
    size, asked = Folder.size, []

    def vanished(folder: Folder, name: str) -> int | None:
        asked.append(name)
        return None if name == "preshard-000000.tar" else size(folder, name)

    monkeypatch.setattr(Folder, "size", vanished)
    verdict = verify_dataset(str(tiny_dataset), processes=1, progress=progress)
    assert "preshard-000000.tar" in asked
    assert [(fault.rule, fault.file) for fault in verdict.broken] == [("S1", "shards/preshard-000000.tar")]
