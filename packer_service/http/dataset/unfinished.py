"""What is known of a folder whose job has not finished."""

from __future__ import annotations

import json
from dataclasses import dataclass

from preshard.packer_service.http.dataset.folder import ServedFolder
from preshard.schemas.manifest import PLANNED, SHARDS, WORK

LARGEST_PLANNED = 1 << 20
"""Bytes of ``planned.json`` that are read; it holds a few numbers."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Unfinished:
    """A job that is running or was killed. ``shards_total`` is None until the job has planned."""

    name: str
    shards_done: int
    shards_total: int | None
    bytes: int

    @property
    def reason(self) -> str:
        of = "" if self.shards_total is None else f" of {self.shards_total}"
        return (
            f"Packing has not finished: {self.shards_done}{of} shards are written. "
            "If its job no longer runs, the same pack command continues it."
        )


def look_at_job(name: str, folder: ServedFolder) -> Unfinished:
    """Counts the whole shards: a shard appears under its final name only when it is complete."""
    sizes = {file: size for file, size in folder.sizes(SHARDS).items() if file.endswith(".tar") and file[0] != "."}
    return Unfinished(
        name=name, shards_done=len(sizes), shards_total=_planned_shards(folder), bytes=sum(sizes.values())
    )


def _planned_shards(folder: ServedFolder) -> int | None:
    """The number of shards in the plan, once the job has recorded it."""
    try:
        planned = json.loads(folder.child(WORK).read(PLANNED, LARGEST_PLANNED))["shards"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return planned if isinstance(planned, int) else None
