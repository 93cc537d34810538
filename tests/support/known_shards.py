"""Verifying datasets that differ in one shard: what was found in a shard, or answered about tables, is kept."""

from __future__ import annotations

import hashlib
import pickle
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from preshard.packer_service.tables.connect import connect
from preshard.packer_service.verify import Verdict, dataset, tables, verify_dataset
from preshard.packer_service.verify.shard import ShardTask, ShardVerdict, check_shard
from preshard.packer_service.verify.tables import TableCheck
from preshard.schemas.manifest import SHARDS

ASK = TableCheck._ask


class KnownShards:
    """``known.verify(folder, progress)`` is ``verify_dataset`` of a folder, with the shards that it saw before.

    A corrupt dataset shares all shards but one with the sound one, and mostly its documents, and checking those is most
    of the work. A shard is the same when its bytes, its index and all that the manifest and the tables say of it are,
    and an answer when the query and the bytes of the tables are.
    """

    def __init__(self) -> None:
        self._verdicts: dict[bytes, bytes] = {}
        self._answers: dict[bytes, list[dict[str, Any]]] = {}

    def verify(self, folder: Path, progress: object) -> Verdict:
        def ask(check: TableCheck, database: Any, names: Sequence[str], sql: str) -> Iterator[dict[str, Any]]:
            return self._ask(check, database, names, sql)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(dataset, "check_shard", self._check)
            patch.setattr(tables, "connect", _connected)
            patch.setattr(TableCheck, "_ask", ask)
            return verify_dataset(str(folder), processes=1, progress=progress)

    def _ask(self, check: TableCheck, database: Any, names: Sequence[str], sql: str) -> Iterator[dict[str, Any]]:
        hashed = hashlib.sha256(sql.encode())
        for name in names:
            with check._folder.open(f"{name}.parquet") as file:
                hashed.update(hashlib.sha256(file.read()).digest())
        if hashed.digest() not in self._answers:
            self._answers[hashed.digest()] = list(ASK(check, database, names, sql))
        yield from self._answers[hashed.digest()]

    def _check(self, task: ShardTask) -> ShardVerdict:
        key = _identity(task)
        if key not in self._verdicts:
            self._verdicts[key] = pickle.dumps(check_shard(task))
        verdict: ShardVerdict = pickle.loads(self._verdicts[key])
        return verdict


def _connected(rows: Any = None, *, database: Any = None, **_limits: Any) -> AbstractContextManager[Any]:
    """A connection that may not spill, and so needs no database of its own: these tables are small."""
    return connect(rows, database=database)


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
