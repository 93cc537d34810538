"""Ownership of a folder: a job's first run claims it, a run holds it, the next one continues, or finds it whole."""

from __future__ import annotations

import errno
import json
import os
import platform
import time
from collections.abc import Iterable, Iterator, Set
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice

from preshard.packer_service.job.job_record import Record, refuse_difference
from preshard.packer_service.runtime.progress import Progress
from preshard.packer_service.shards.lock import LOCK, FolderInUseError, locked
from preshard.packer_service.shards.store import Folder
from preshard.schemas.dataset.manifest_parts import decode_manifest_parts
from preshard.schemas.errors import ConfigError, PreshardError
from preshard.schemas.manifest import (
    BESIDE,
    FIGURES,
    LARGEST_MANIFEST,
    LARGEST_RUN,
    MANIFEST,
    MODEL,
    RUN,
    SHARDS,
    WORK,
    ManifestHead,
    ShardEntry,
)

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Errors of a disk on which no space is left."""

INDEX_ENTRY_BYTES = 8
"""Bytes of an offset in a shard's index."""
LISTED_SHARDS = 50_000
"""Most shards of an object store that are listed to see whether a dataset is whole: a hundred requests."""
ASKED_SHARDS = 100
"""Shards that are asked for one by one where there are more."""


class DatasetDamagedError(PreshardError):
    """A dataset is whole by its manifest, but one of its files is missing or has another size."""


def finished_before(folder: Folder, record: Record) -> ManifestHead | None:
    """The manifest of a folder in which this job has finished, None when there is no manifest yet.

    Every file that the manifest names is there with its size; whether its bytes are right is for ``verify`` to say. In
    an object store with very many shards only some are asked for.

    Raises:
        ConfigError: the dataset belongs to another job.
        DatasetDamagedError: a file is missing, or has another size.

    A dataset of another job that holds no document is removed: whoever packs again with another option has seen why.
    """
    if not folder.is_file(MANIFEST):
        return None
    manifest, shards = decode_manifest_parts(folder.read(MANIFEST, LARGEST_MANIFEST), MANIFEST)
    if not folder.is_file(RUN):
        raise ConfigError(
            f"--out {folder.location}: is a whole dataset without {RUN}, so preshard cannot tell whether it is this "
            "job's; give another folder"
        )
    before = json.loads(folder.read(RUN, LARGEST_RUN))["job"]
    if not manifest.counts.documents and before != record:
        _clear_dataset(folder, manifest)
        return None
    refuse_difference(before, record, folder.location)
    _check_sizes(folder, manifest, shards)
    _clear(folder)
    return manifest


def _clear_dataset(folder: Folder, manifest: ManifestHead) -> None:
    """Removes a dataset of no document, the manifest first, so that another job may take its folder."""
    folder.delete(MANIFEST)
    for name in (RUN, FIGURES, *(table.name for table in manifest.tables)):
        if folder.is_file(name):
            folder.delete(name)
    for name in (SHARDS, MODEL, WORK):
        if (folder / name).exists():
            (folder / name).delete_all()


def _check_sizes(folder: Folder, manifest: ManifestHead, shards: Iterable[ShardEntry]) -> None:
    for table in manifest.tables:
        _check_size(folder, table.name, folder.size(table.name), table.bytes)
    _check_size(folder, FIGURES, folder.size(FIGURES), manifest.figures.bytes)
    for entry in manifest.carried:
        name = f"{MODEL}/{entry.name}"
        _check_size(folder, name, folder.size(name), entry.bytes)
    n_shards = -(-manifest.counts.packs // manifest.config["packs_per_shard"])
    many = n_shards > LISTED_SHARDS
    listed = None if many or folder.is_local else (folder / SHARDS).sizes()
    every = max(n_shards // ASKED_SHARDS, 1) if many and not folder.is_local else 1
    for shard in islice(shards, 0, None, every):
        files = {shard.name: shard.bytes, f"{shard.name}.idx": INDEX_ENTRY_BYTES * (shard.packs + 1)}
        for name, size in files.items():
            found = folder.size(f"{SHARDS}/{name}") if listed is None else listed.get(name)
            _check_size(folder, f"{SHARDS}/{name}", found, size)


def _check_size(folder: Folder, name: str, found: int | None, size: int) -> None:
    if found != size:
        how = "is missing" if found is None else f"has {found} bytes, not {size}"
        remedy = "put the file back, or remove the folder and run the same command again"
        raise DatasetDamagedError(f"{folder.location}: the dataset was whole, but {name} {how}; {remedy}")


def _clear(folder: Folder) -> None:
    """Removes the work folder that a run left when it was killed in its last moment."""
    if not (folder / WORK).exists():
        return
    try:
        with locked(folder / WORK):
            (folder / WORK).delete_all()
    except (FolderInUseError, FileNotFoundError):
        pass  # the run that has just written the manifest is about to do the same
    except OSError as error:
        if error.errno is None:  # not the operating system's: a store does not answer
            raise
        # a dataset that was made read-only is whole all the same


JOB = "job.json"
ATTEMPTS = "attempts.json"
ENDED = "ended.json"
"""File in the work folder with the configuration error that ended the last run of a job."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A folder that belongs to this job, and to nobody else while the job runs.

    ``attempts`` are the runs of the job so far, this one last: ``started``, ``host`` and ``pid`` of each.
    """

    folder: Folder
    record: Record
    attempts: list[Record]

    @property
    def work(self) -> Folder:
        return self.folder / WORK

    def end(self, reason: str) -> None:
        """Lets another job take the folder: this one needs another configuration before it can go on."""
        self.work.write(ENDED, json.dumps(reason).encode())

    def check(self) -> None:
        """Makes sure that the folder still belongs to this job: no lock keeps others out of an object store.

        Raises:
            ConfigError: another job has claimed it; shows the difference.
            FileNotFoundError: another run of this job has finished and removed its work folder.
        """
        if not self.folder.is_local:
            refuse_difference(json.loads(self.work.read(JOB)), self.record, self.folder.location)


@contextmanager
def claimed(folder: Folder, record: Record, progress: Progress) -> Iterator[Claim]:
    """Claims a new folder for this job, or one that it claimed before, and holds it while the block runs.

    Raises:
        ConfigError: the folder holds something else, or cannot be written.
        FolderInUseError: another job holds it.
    """
    with ExitStack() as stack:
        try:
            alone = stack.enter_context(locked(folder / WORK))
            claim = _claim(folder, record)
        except FolderInUseError as error:
            raise FolderInUseError(f"--out {folder.location}: {error}") from None
        except OSError as error:
            if error.errno in FULL:
                raise  # nothing is wrong with the folder but that it is full
            raise ConfigError(f"--out {folder.location}: cannot be written ({error.strerror or error})") from None
        if folder.is_local and not alone:
            progress.note("this filesystem has no locks: make sure that no other job writes into the folder")
        yield claim


def _claim(folder: Folder, record: Record) -> Claim:
    work = folder / WORK
    before = json.loads(work.read(JOB)) if work.is_file(JOB) else None
    if before is not None and before != record and work.is_file(ENDED) and not (folder / SHARDS).exists():
        for name, is_folder in work.entries().items():
            if is_folder:
                (work / name).delete_all()
            elif name not in (LOCK, JOB):
                work.delete(name)
        work.write(JOB, json.dumps(record).encode())
    elif before is not None:
        refuse_difference(before, record, folder.location)
        folder.delete_temporary()
        if work.is_file(ENDED):
            work.delete(ENDED)
    else:
        _claim_new(folder, record)
    attempts = json.loads(work.read(ATTEMPTS)) if work.is_file(ATTEMPTS) else []
    attempts.append({"started": now(), "host": platform.node(), "pid": os.getpid()})
    work.write(ATTEMPTS, json.dumps(attempts).encode())
    return Claim(folder=folder, record=record, attempts=attempts)


def _claim_new(folder: Folder, record: Record) -> None:
    other = _any_file(folder, apart=frozenset({WORK}) | BESIDE)
    if other is not None:
        raise ConfigError(
            f"--out {folder.location}: holds {other}, which no preshard job wrote; give a new or empty folder"
        )
    for name, is_folder in (folder / WORK).entries().items():
        if is_folder:
            (folder / WORK / name).delete_all()
        elif name != LOCK:
            (folder / WORK).delete(name)
    (folder / WORK).write(JOB, json.dumps(record).encode())


def _any_file(folder: Folder, apart: Set[str] = frozenset()) -> str | None:
    """A file of a folder, at any depth but below some names: the first that is found, since there may be very many."""
    for name, is_folder in folder.entries().items():
        if name in apart:
            continue
        if is_folder:
            below = _any_file(folder / name)
            if below is not None:
                return f"{name}/{below}"
        else:
            return name
    return None


def now() -> str:
    """The time as RFC 3339, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
