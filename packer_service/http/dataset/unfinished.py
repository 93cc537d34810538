"""What is known of a folder in which a job has not ended."""

from __future__ import annotations

import json
from dataclasses import dataclass

from packer_service.http.dataset.inside import Inside
from schemas.manifest import PLANNED, SHARDS, WORK


@dataclass(frozen=True, kw_only=True, slots=True)
class Unfinished:
    """A job that is at work, or was killed. ``shards_total`` is None until the job has planned."""

    name: str
    shards_done: int
    shards_total: int | None
    bytes: int

    @property
    def reason(self) -> str:
        of = "" if self.shards_total is None else f" of {self.shards_total}"
        return (
            f"Packing has not ended: {self.shards_done}{of} shards are there; run the same pack command again to go on."
        )


def look_at_job(name: str, folder: Inside) -> Unfinished:
    """Counts the shards that are whole: a shard appears under its name when it is."""
    sizes = {file: size for file, size in folder.sizes(SHARDS).items() if file.endswith(".tar") and file[0] != "."}
    return Unfinished(
        name=name, shards_done=len(sizes), shards_total=_planned_shards(folder), bytes=sum(sizes.values())
    )


def _planned_shards(folder: Inside) -> int | None:
    """How many shards the plan has, where the job has written it down."""
    try:
        planned = json.loads(folder.child(WORK).read(PLANNED))["shards"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return planned if isinstance(planned, int) else None
