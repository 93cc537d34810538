"""Which shards of an earlier run are still what their records say, so that they need not be written again."""

from __future__ import annotations

from functools import partial

from packer_service.job.records import RECORD, is_kept
from packer_service.runtime.executors import Executor, PlainExecutor
from packer_service.runtime.progress import Progress
from packer_service.shards.store import Folder
from schemas.manifest import SHARDS, WORK

FEW_SHARDS = 128
"""Most shards of an earlier run that this process checks itself; a shard in an object store takes several requests."""

FEW_BYTES = 2**30
"""Most bytes of those shards that this process hashes itself: a few seconds, where Ray takes nine to start."""


def kept_shards(folder: Folder, names: set[str], *, executor: Executor, few_bytes: int, progress: Progress) -> set[str]:
    """Those of the named shards that an earlier run has written, recognised by their hash.

    Args:
        folder: the dataset.
        names: names of all of its shards.
        executor: checks the shards where they are many.
        few_bytes: up to so many bytes are hashed by this process, before a cluster would have started.
        progress: hears what was found.
    """
    files = set((folder / WORK / SHARDS).names())
    recorded = sorted(name for name in names if f"{name}/{RECORD}" in files)
    kept: set[str] = set()
    if not recorded:
        return kept
    checker = PlainExecutor() if _are_few(folder, recorded, few_bytes) else executor
    checks = checker.run(partial(is_kept, out=folder.location), recorded)
    for done, (index, is_whole) in enumerate(checks, start=1):
        progress.step("checked shards", done, len(recorded))
        if is_whole:
            kept.add(recorded[index])
    changed = f", {len(recorded) - len(kept)} changed since" if len(kept) < len(recorded) else ""
    progress.note(f"found {len(kept)} of {len(names)} shards written before{changed}")
    return kept


def _are_few(folder: Folder, recorded: list[str], few_bytes: int) -> bool:
    sizes = (folder / SHARDS).sizes()
    return len(recorded) <= FEW_SHARDS and sum(sizes.get(name, 0) for name in recorded) <= few_bytes
