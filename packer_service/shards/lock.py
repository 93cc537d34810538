"""One job in a folder at a time, where the filesystem can say so."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packer_service.shards.store import Folder
from schemas.errors import PreshardError

LOCK = "lock"
"""Name of the locked file. What is in it is for people; the lock is the kernel's, and goes with its holder."""


class FolderInUseError(PreshardError):
    """Another job is writing into the folder."""


@contextmanager
def locked(folder: Folder) -> Iterator[bool]:
    """Holds a folder for this process while the block runs; tells whether it can.

    On a local disk the lock is the kernel's (``flock``): it ends with the process, also with a killed one, so that
    nothing is ever left to be removed by hand. An object store has no lock, nor have some network filesystems: there
    the value is False.

    Raises:
        FolderInUseError: another process holds it; names that process.
        OSError: the folder cannot be written.
    """
    if not folder.is_local:
        yield False
        return
    path = Path(folder.path(LOCK))
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = _take(path, folder.location)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _take(path: Path, location: str) -> int | None:
    """The locked file's descriptor, None where the filesystem knows no locks."""
    while True:
        # not inheritable: a child that outlives the job must not hold its lock
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            who = _holder(descriptor)
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES):
                raise FolderInUseError(f"{location}: another job is at work ({who}); let it end, or stop it") from None
            if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL):
                return None
            raise
        if _is_still_there(descriptor, path):
            _say_who(descriptor)
            return descriptor
        os.close(descriptor)  # the job before ended and removed the file while it was being opened here


def _is_still_there(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _say_who(descriptor: int) -> None:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    who = json.dumps({"pid": os.getpid(), "host": platform.node(), "since": since})
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, who.encode(), 0)


def _holder(descriptor: int) -> str:
    try:
        who = json.loads(os.pread(descriptor, 4096, 0))
        return f"process {who['pid']} on {who['host']}, since {who['since']}"
    except (ValueError, KeyError, TypeError, OSError):
        return "it has not said yet which"
