"""A folder is held by one process, and by none that has ended."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from preshard.packer_service.shards.lock import LOCK, FolderInUseError, locked
from preshard.packer_service.shards.store import Folder
from preshard.schemas.files.filesystem import FileRefusedError

HOLDER = """
import subprocess, sys
from preshard.packer_service.shards.lock import locked
from preshard.packer_service.shards.store import Folder
from preshard.schemas.files.filesystem import FileRefusedError
with locked(Folder(sys.argv[1])):
    child = subprocess.Popen(["sleep", "600"], close_fds=False)
    print(child.pid, flush=True)
    sys.stdin.read()
"""


@contextmanager
def holder(folder: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A process that holds the folder, and the id of a child of it that lives on."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        try:
            yield process, child
        finally:
            process.kill()
            os.kill(child, signal.SIGKILL)


@pytest.mark.process
def test_a_held_folder_names_its_holder_until_that_is_killed(tmp_path: Path) -> None:
    """Fails when two jobs write into a folder, or a killed one, or a child that it left, keeps others out."""
    with holder(tmp_path / "new") as (process, child):
        with pytest.raises(FolderInUseError) as refused, locked(Folder(str(tmp_path / "new"))):
            pass
        who = f"another job is writing here (process {process.pid} on {platform.node()}, since 20"
        assert str(refused.value).startswith(f"{tmp_path / 'new'}: {who}")
        process.kill()
        process.wait()
        os.kill(child, 0)
        with locked(Folder(str(tmp_path / "new"))) as alone:
            assert alone


def test_it_is_let_go_with_its_folder(tmp_path: Path) -> None:
    """Fails when a job cannot remove the folder that it holds, or what comes next is kept out."""
    folder = Folder(str(tmp_path / "work"))
    for _ in range(2):
        with locked(folder) as alone:
            assert alone
            shutil.rmtree(tmp_path / "work")


@pytest.fixture
def at_first_flock(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Runs a function between opening the file and locking it for the first time."""

    def install(do: Callable[[], Any]) -> None:
        flock, todo = fcntl.flock, [do]

        def hooked(descriptor: int, operation: int) -> None:
            if todo:
                todo.pop()()
            flock(descriptor, operation)

        monkeypatch.setattr(fcntl, "flock", hooked)

    return install


@pytest.mark.process
def test_a_file_that_its_last_holder_removed_is_not_locked(
    tmp_path: Path, at_first_flock: Callable[[Callable[[], Any]], None]
) -> None:
    """Fails when the lock is on a file without a name: a third job would lock the next file of that name."""
    at_first_flock((tmp_path / LOCK).unlink)
    with locked(Folder(str(tmp_path))) as alone:
        assert alone
        other = [sys.executable, "-c", HOLDER, str(tmp_path)]
        done = subprocess.run(other, capture_output=True, text=True, timeout=240, check=False)
        assert "FolderInUseError" in done.stderr


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL])
def test_a_filesystem_without_locks_is_used_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Fails when a network filesystem without locks cannot be packed to, or the user is not told."""

    def refuse(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with locked(Folder(str(tmp_path))) as alone:
        assert not alone


def test_another_failure_of_the_lock_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a broken disk is taken for one without locks."""

    def refuse(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(OSError, match="Input/output error"), locked(Folder(str(tmp_path))):
        pass


@pytest.mark.parametrize("name", ["work", f"work/{LOCK}"])
def test_what_is_no_file_is_not_locked(tmp_path: Path, name: str) -> None:
    """Fails when a pipe in the place of the folder or the file ends in an error of the system, or is opened."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / name)
    with pytest.raises(FileRefusedError, match=rf"{name}: is not a .*; remove"), locked(Folder(str(tmp_path / "work"))):
        pass
