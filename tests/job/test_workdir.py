"""Remains of an earlier run: believed only where their bytes are still those on record."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from preshard.packer_service.job.pack import pack
from preshard.schemas.config import PackConfig
from preshard.schemas.encode import encode_index


def files(folder: Path) -> dict[str, bytes]:
    found = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: data for name, data in found.items() if name != "run.json"}


def flip_a_byte(path: Path) -> None:
    """Flips a byte and keeps the size, so that only the hash can tell."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def point_elsewhere(path: Path) -> None:
    """An index of as many samples and the same end, with its second sample one block further on."""
    offsets = np.frombuffer(path.read_bytes(), "<u8").copy()
    offsets[1] += 512
    path.write_bytes(encode_index(offsets))


@pytest.fixture(scope="module")
def stopped(
    tiny_source: Path, tiny_config: PackConfig, tmp_path_factory: pytest.TempPathFactory, progress: Any, stopping: Any
) -> Path:
    """Folder left by a job that was stopped behind its first shard. Read only: copy it before changing anything."""
    out = tmp_path_factory.mktemp("stopped") / "out"
    with pytest.raises(stopping.Stopped):
        pack([str(tiny_source)], str(out), tiny_config, stopping(2), progress)
    assert (out / "shards" / "preshard-000000.tar.idx").exists(), "a shard must have been kept"
    return out


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("shards/preshard-000000.tar", flip_a_byte),
        ("shards/preshard-000000.tar", lambda path: path.write_bytes(path.read_bytes()[:-512])),
        ("shards/preshard-000000.tar", Path.unlink),
        ("shards/preshard-000000.tar.idx", flip_a_byte),
        ("shards/preshard-000000.tar.idx", point_elsewhere),
        ("shards/preshard-000000.tar.idx", Path.unlink),
        (".work/shards/000000/preshard-000000.tar.record", Path.unlink),
    ],
    ids=["bytes", "cut", "gone", "index", "index-elsewhere", "index-gone", "record-gone"],
)
def test_a_kept_shard_that_was_changed_since_is_written_again(
    file: str,
    damage: Callable[[Path], None],
    stopped: Path,
    tiny_dataset: Path,
    tiny_source: Path,
    tiny_config: PackConfig,
    tmp_path: Path,
    progress: Any,
    stopping: Any,
) -> None:
    """Fails when a shard is taken for whole because it is there, is as long as before, or only its index is sound."""
    out, n_shards = shutil.copytree(stopped, tmp_path / "out"), len(list(tiny_dataset.glob("shards/*.tar")))
    damage(out / file)
    rest = stopping(1000)
    pack([str(tiny_source)], str(out), tiny_config, rest, progress)
    assert rest.ran["build_and_keep"] == n_shards
    assert files(out) == files(tiny_dataset)
