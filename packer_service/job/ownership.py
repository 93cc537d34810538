"""Which job a folder belongs to: the first run claims it, a run holds it, and the next run continues there."""

from __future__ import annotations

import errno
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from preshard.packer_service.job.job_record import Record, refuse_difference
from preshard.packer_service.runtime.progress import Progress
from preshard.packer_service.shards.lock import LOCK, FolderInUseError, locked
from preshard.packer_service.shards.store import Folder
from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import WORK

JOB = "job.json"
ATTEMPTS = "attempts.json"


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
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise  # nothing is wrong with the folder but that it is full
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
        _claim_new(folder, record)
    attempts = json.loads(work.read(ATTEMPTS)) if work.is_file(ATTEMPTS) else []
    attempts.append({"started": now(), "host": platform.node(), "pid": os.getpid()})
    work.write(ATTEMPTS, json.dumps(attempts).encode())
    return Claim(folder=folder, record=record, attempts=attempts)


def _claim_new(folder: Folder, record: Record) -> None:
    other = _any_file(folder, apart=WORK)
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


def _any_file(folder: Folder, apart: str = "") -> str | None:
    """A file of a folder, at any depth but below one name: the first that is found, since there may be very many."""
    for name, is_folder in folder.entries().items():
        if is_folder and name != apart:
            below = _any_file(folder / name)
            if below is not None:
                return f"{name}/{below}"
        elif not is_folder:
            return name
    return None


def now() -> str:
    """The time as RFC 3339, in UTC."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
