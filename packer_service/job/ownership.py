"""Which job a folder belongs to: taken by the first run, held while one runs, gone on with by the next."""

from __future__ import annotations

import errno
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from packer_service.job.record import refuse_difference
from packer_service.runtime.progress import Progress
from packer_service.shards.lock import LOCK, FolderInUseError, locked
from packer_service.shards.store import Folder
from schemas.codec import decode_manifest
from schemas.errors import ConfigError, PreshardError
from schemas.manifest import MANIFEST, RUN, SHARDS, WORK, Manifest

JOB = "job.json"
ATTEMPTS = "attempts.json"

Record = dict[str, Any]


class DatasetDamagedError(PreshardError):
    """A dataset is whole by its manifest, but a file of it is not there."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Claim:
    """A folder that is this job's, and nobody else's while the job runs.

    ``attempts`` are the runs of the job until now, this one last: ``started``, ``host`` and ``pid`` of each.
    """

    folder: Folder
    record: Record
    attempts: list[Record]

    @property
    def work(self) -> Folder:
        return self.folder / WORK

    def check(self) -> None:
        """Makes sure that the folder is still this job's: an object store has no lock that would keep others out.

        Raises:
            ConfigError: another job took it; shows the difference.
            FileNotFoundError: another run of this job has ended and cleared its work away.
        """
        if not self.folder.is_local:
            refuse_difference(json.loads(self.work.read(JOB)), self.record, self.folder.location)


@contextmanager
def claimed(folder: Folder, record: Record, progress: Progress) -> Iterator[Claim]:
    """Takes a new folder for this job, or one that it took before, and holds it while the block runs.

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
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # the folder is right, there is only no room in it
            raise ConfigError(f"--out {folder.location}: cannot be written ({error.strerror or error})") from None
        if folder.is_local and not alone:
            progress.note("this filesystem has no locks: make sure that no other job writes into the folder")
        yield claim


def _claim(folder: Folder, record: Record) -> Claim:
    work = folder / WORK
    if work.is_file(JOB):
        refuse_difference(json.loads(work.read(JOB)), record, folder.location)
        folder.delete_temporary()
    else:
        _take(folder, record)
    attempts = json.loads(work.read(ATTEMPTS)) if work.is_file(ATTEMPTS) else []
    attempts.append({"started": now(), "host": platform.node(), "pid": os.getpid()})
    work.write(ATTEMPTS, json.dumps(attempts).encode())
    return Claim(folder=folder, record=record, attempts=attempts)


def _take(folder: Folder, record: Record) -> None:
    names = folder.names()
    others = [name for name in names if not name.startswith(f"{WORK}/")]
    if others:
        raise ConfigError(f"--out {folder.location}: holds {others[0]}, of no job of ours; give a new or empty folder")
    for name in names:
        if name != f"{WORK}/{LOCK}":
            folder.delete(name)
    (folder / WORK).write(JOB, json.dumps(record).encode())


def now() -> str:
    """The time as RFC 3339, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def finished_before(folder: Folder, record: Record) -> Manifest | None:
    """The manifest of a folder in which this job has ended, None when there is no manifest yet.

    Every file that the manifest names is there in its size; that its bytes are right is for ``verify`` to say.

    Raises:
        ConfigError: the dataset is another job's.
        DatasetDamagedError: a file is missing, or has another size.
    """
    if not folder.is_file(MANIFEST):
        return None
    manifest = decode_manifest(folder.read(MANIFEST), MANIFEST)
    if not folder.is_file(RUN):
        raise ConfigError(f"--out {folder.location}: is a whole dataset without {RUN}, so of which job is not known")
    refuse_difference(json.loads(folder.read(RUN))["job"], record, folder.location)
    _check_sizes(folder, manifest)
    _clear(folder)
    return manifest


def _check_sizes(folder: Folder, manifest: Manifest) -> None:
    sizes = folder.sizes()
    expected = {table.name: table.bytes for table in manifest.tables}
    for shard in manifest.shards:
        expected[f"{SHARDS}/{shard.name}"] = shard.bytes
        expected[f"{SHARDS}/{shard.name}.idx"] = 8 * (shard.packs + 1)
    for name, size in expected.items():
        if sizes.get(name) != size:
            found = "is missing" if name not in sizes else f"has {sizes[name]} bytes, not {size}"
            remedy = "put the file back, or remove the folder and run the same command again"
            raise DatasetDamagedError(f"{folder.location}: the dataset was whole, but {name} {found}; {remedy}")


def _clear(folder: Folder) -> None:
    """Removes the work folder that a run killed in its last moment has left."""
    if not (folder / WORK).exists():
        return
    try:
        with locked(folder / WORK):
            (folder / WORK).delete_all()
    except (FolderInUseError, FileNotFoundError):
        pass  # the run that has just written the manifest is about to do the same
    except OSError as error:  # a dataset that was made read-only is whole all the same
        if error.errno is None:
            raise
