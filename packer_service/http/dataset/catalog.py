"""State of a folder below the root: a whole dataset, an unfinished one, a damaged one, or none."""

from __future__ import annotations

import json
from dataclasses import dataclass

import pyarrow as pa

from preshard.packer_service.http.dataset.cache import Cache
from preshard.packer_service.http.dataset.folder import OutsideError, ServedFolder, reason_of
from preshard.packer_service.http.dataset.reader import ServedDataset, Stamps, load_dataset
from preshard.packer_service.http.models.datasets import DatasetEntry, name_below_root
from preshard.packer_service.http.problems import ProblemError, damaged, no_dataset, unfinished
from preshard.packer_service.shards.store import Folder, require_answer
from preshard.schemas.errors import PreshardError
from preshard.schemas.files.filesystem import split_query
from preshard.schemas.files.printed import without_secrets
from preshard.schemas.manifest import FIGURES, MANIFEST, PLANNED, RUN, SHARDS, WORK
from preshard.schemas.tables import TABLES


@dataclass(frozen=True, kw_only=True, slots=True)
class Damaged:
    """A dataset that cannot be served, and why."""

    name: str
    reason: str


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


Found = ServedDataset | Unfinished | Damaged
"""The outcome of examining a folder below the root."""


def require_root(root: str) -> None:
    """Raises ConfigError unless there is such a folder."""
    require_answer("ROOT", root)
    Folder(root).require("ROOT")


def name_of(path: str, root: str) -> str:
    """A dataset's path below the root as a single path segment. Different paths have different names."""
    if not path:
        return split_query(without_secrets(root))[0].rstrip("/").rpartition("/")[2] or "root"
    return name_below_root(path)


def what_lies_in(folder: ServedFolder) -> tuple[bool, list[str]]:
    """Whether a folder holds a dataset or a job, and, where it does not, the folders in it that may."""
    if not folder.is_within():  # a link; nothing outside of the root is read, but a dataset there is named
        return folder.has_file(MANIFEST), []
    try:
        entries = folder.entries()
    except OSError:  # we may not read this folder, so it holds nothing that we serve
        return False, []
    if entries.get(MANIFEST) is False or entries.get(WORK):
        return True, []
    return False, [name for name, is_folder in entries.items() if is_folder and not name.startswith(".")]


def stamps_of(folder: ServedFolder) -> Stamps:
    """The stamps of everything that says whether a dataset has changed. The first is the manifest's."""
    return tuple(folder.stamp(file) for file in (MANIFEST, RUN, FIGURES, SHARDS, *TABLES))


def examine(
    name: str, folder: ServedFolder, cache: Cache, *, looks_at_shards: bool = True, is_thorough: bool = False
) -> Found:
    """Examines a folder: it is a dataset, a job, or something damaged.

    Args:
        name: what it is called.
        folder: where it lies.
        cache: what a dataset keeps its columns in.
        looks_at_shards: whether to list the shards. Else one that is missing shows when it is read.
        is_thorough: whether to read every table's footer, and hash those that are not large.
    """
    try:
        stamps = stamps_of(folder)
        if not folder.is_within(MANIFEST):
            raise OutsideError("a link leads out of the root; move the dataset below it, or serve a folder above both")
        if stamps[0] is None:
            return look_at_job(name, folder)
        found = load_dataset(name, folder, stamps, cache, looks_at_shards=looks_at_shards)
        if is_thorough:
            found.check_tables()
        return found
    except ProblemError as problem:
        return Damaged(name=name, reason=problem.detail.removeprefix(f"{name}: "))
    except (PreshardError, OSError, pa.ArrowException, ValueError, MemoryError) as error:
        return Damaged(name=name, reason=reason_of(error))


def whole_or_refuse(name: str, found: Found | None) -> ServedDataset:
    """A dataset that can be served.

    Raises:
        ProblemError: 404 no dataset has that name, 409 it is unfinished or damaged.
    """
    if isinstance(found, ServedDataset) and found.broken is None:
        return found
    if isinstance(found, Unfinished):
        raise unfinished(name, found.reason)
    if found is None:
        raise no_dataset(name)
    raise damaged(name, found.reason if isinstance(found, Damaged) else str(found.broken))


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


def entry_of(found: Found) -> DatasetEntry:
    """A dataset, whatever its state, as the list shows it."""
    if isinstance(found, Unfinished):
        return DatasetEntry(
            name=found.name,
            state="unfinished",
            reason=found.reason,
            shards_done=found.shards_done,
            shards_total=found.shards_total,
            bytes=found.bytes,
        )
    if not isinstance(found, ServedDataset):
        return DatasetEntry(name=found.name, state="damaged", reason=found.reason)
    counts, manifest = found.manifest.counts, found.manifest
    return DatasetEntry(
        name=found.name,
        state="whole" if found.broken is None else "damaged",
        reason=found.broken,
        dataset_id=manifest.dataset_id,
        counts=counts,
        seq_len=found.config.seq_len,
        fill=counts.tokens / (counts.packs * found.config.seq_len) if counts.packs else 0.0,
        shards_done=len(found.shards),
        shards_total=len(found.shards),
        bytes=found.shard_bytes,
        packed=found.run[0],
    )
