"""One job in a folder at a time, where the filesystem can say so."""

from __future__ import annotations

import errno
import json
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from preshard.packer_service.shards.store import Folder, make_folder
from preshard.schemas.errors import PreshardError
from preshard.schemas.files.filesystem import FileRefusedError

LOCK = "lock"
"""Name of the locked file. Its content is for people; the lock itself is the kernel's and ends with its holder."""

RETRY_SECONDS = 0.5
"""A job that ends removes the file. Whoever opened it just before then has locked nothing, and must try again."""

NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""Errors by which filesystems say that they have no locks."""


class FolderInUseError(PreshardError):
    """Another job is writing into the folder."""


@contextmanager
def locked(folder: Folder) -> Iterator[bool]:
    """Holds a folder for this process while the block runs; the value says whether it could be locked.

    On a local disk the lock is the kernel's (``flock``): it ends with the process, even one that is killed, so nothing
    is left to be removed by hand. Object stores and some network filesystems have no locks; there the value is False.

    Raises:
        FolderInUseError: another process holds the folder; the text names that process.
        FileRefusedError: the folder, or the file that would be locked, is something else or a link.
        OSError: the folder cannot be written.
    """
    if not folder.is_local:
        yield False
        return
    path = folder.for_writing(LOCK)
    if path.is_symlink():
        raise FileRefusedError(f"{path}: is a link, and nothing is written through it; remove it")
    make_folder(path.parent)
    if path.exists() and not path.is_file():
        raise FileRefusedError(f"{path}: is not a file; remove it")
    lock = FileLock(path, timeout=RETRY_SECONDS, fallback_to_soft=False, on_acquired=_name_holder)
    try:
        lock.acquire()
    except Timeout:
        raise FolderInUseError(
            f"{folder.location}: another job is writing here ({_holder(path)}); wait for it, or stop it"
        ) from None
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
    try:
        yield lock.is_locked
    finally:
        lock.release()


def _name_holder(descriptor: int) -> None:
    since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    who = json.dumps({"pid": os.getpid(), "host": platform.node(), "since": since})
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, who.encode(), 0)


def _holder(path: Path) -> str:
    try:
        who = json.loads(path.read_bytes())
        return f"process {who['pid']} on {who['host']}, since {who['since']}"
    except (ValueError, KeyError, TypeError, OSError):
        return "which has not given its name yet"
