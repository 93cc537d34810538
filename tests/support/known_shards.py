"""Verifying datasets that differ in one shard: what was found in a shard is kept, and found again without a check."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import fields
from pathlib import Path

import pyarrow as pa
import pytest

from preshard.packer_service.verify import Verdict, dataset, verify_dataset
from preshard.packer_service.verify.shard import ShardTask, ShardVerdict, check_shard
from preshard.schemas.manifest import SHARDS


class KnownShards:
    """``known.verify(folder, progress)`` is ``verify_dataset`` of a folder, with the shards that it saw before.

    A corrupt dataset shares all shards but one with the sound one, and checking shards is most of the work. A shard is
    the same when its bytes, its index and all that the manifest and the tables say of it are.
    """

    def __init__(self) -> None:
        self._verdicts: dict[bytes, bytes] = {}

    def verify(self, folder: Path, progress: object) -> Verdict:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dataset, "check_shard", self._check)
            return verify_dataset(str(folder), processes=1, progress=progress)

    def _check(self, task: ShardTask) -> ShardVerdict:
        key = _identity(task)
        if key not in self._verdicts:
            self._verdicts[key] = pickle.dumps(check_shard(task))
        verdict: ShardVerdict = pickle.loads(self._verdicts[key])
        return verdict


def _identity(task: ShardTask) -> bytes:
    hashed = hashlib.sha256()
    for field in fields(task):
        value = getattr(task, field.name)
        if isinstance(value, pa.Table):
            value = value.to_pydict()  # a table's own text leaves rows out
        if field.name != "location":
            hashed.update(f"{field.name} {value!r}\n".encode("utf-8", "backslashreplace"))
    for name in (task.entry.name, f"{task.entry.name}.idx"):
        path = Path(task.location, SHARDS, name)
        hashed.update(hashlib.sha256(path.read_bytes()).digest() if path.is_file() else b"none")
    return hashed.digest()
