"""Which shards of an earlier run are still what their records say, so that they need not be written again."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
from jaxtyping import Bool

from preshard.packer_service.job.writing.record_file import GROUP, group_folder, record_name
from preshard.packer_service.job.writing.records import find_kept
from preshard.packer_service.runtime.executors import Executor, PlainExecutor
from preshard.packer_service.runtime.progress import Progress
from preshard.packer_service.shards.store import Folder
from preshard.schemas.codec import shard_name
from preshard.schemas.manifest import SHARDS, WORK

CHECKED_TOGETHER = 16
"""Shards that one task checks: their records take a request each, even where there is none."""

FEW_SHARDS = 128
"""Most shards of an earlier run that this process checks itself; a shard in an object store takes several requests."""

FEW_BYTES = 2**30
"""Most bytes of those shards that this process hashes itself: a few seconds, where Ray takes nine to start."""


def kept_shards(
    folder: Folder, n_shards: int, *, executor: Executor, few_bytes: int, progress: Progress
) -> Bool[np.ndarray, "shards"]:
    """Which shards an earlier run has written, recognised by their hash.

    This process lists the folders of groups alone, and the records of one group; tasks do the rest.

    Args:
        folder: the dataset.
        n_shards: number of all of its shards.
        executor: checks the shards where they are many.
        few_bytes: up to so many bytes are hashed by this process, before a cluster would have started.
        progress: hears what was found.
    """
    kept = np.zeros(n_shards, np.bool_)
    groups = [group for group in _groups(folder) if group * GROUP < n_shards]
    few = _few(folder, groups, few_bytes)
    parts = _Parts(groups, n_shards) if few is None else [[number] for number in few if number < n_shards]
    checker = executor if few is None else PlainExecutor()
    recorded = done = 0
    for _, (n_recorded, whole) in checker.run(partial(find_kept, out=folder.location), parts):
        recorded, done = recorded + n_recorded, done + 1
        kept[whole] = True
        progress.step("checked shards", done * n_shards // len(parts), n_shards)
    changed = f", {recorded - kept.sum()} changed since" if kept.sum() < recorded else ""
    if recorded:
        progress.note(f"found {kept.sum()} of {n_shards} shards written before{changed}")
    return kept


def _groups(folder: Folder) -> list[int]:
    """The groups of shards that have a folder of records."""
    names = (folder / WORK / SHARDS).entries()
    return sorted(int(name) for name, is_folder in names.items() if is_folder and name.isdigit())


def _few(folder: Folder, groups: Sequence[int], few_bytes: int) -> list[int] | None:
    """The shards with a record, where they are so few that this process checks them; None where they are more."""
    if len(groups) > 1:
        return None
    below = {group: (folder / WORK / group_folder(group)).entries() for group in groups}
    names = {f"{group_folder(group)}/{name}" for group in groups for name in below[group]}
    numbers = [n for group in groups for n in range(group * GROUP, (group + 1) * GROUP) if record_name(n) in names]
    if len(numbers) > FEW_SHARDS:
        return None
    sizes = ((folder / SHARDS).size(shard_name(number)) or 0 for number in numbers)
    return numbers if sum(sizes) <= few_bytes else None


class _Parts(Sequence[Sequence[int]]):
    """The numbers of the shards of some groups, a few at a time, each made when it is asked for."""

    def __init__(self, groups: Sequence[int], n_shards: int) -> None:
        self.groups, self.n_shards = groups, n_shards

    def __len__(self) -> int:
        return len(self.groups) * (GROUP // CHECKED_TOGETHER)

    def __getitem__(self, index: int) -> range:  # type: ignore[override]
        group, part = divmod(range(len(self))[index], GROUP // CHECKED_TOGETHER)
        first = self.groups[group] * GROUP + part * CHECKED_TOGETHER
        return range(min(first, self.n_shards), min(first + CHECKED_TOGETHER, self.n_shards))
