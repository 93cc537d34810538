"""Folders below the root. Nothing that lies outside the root is ever opened."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from preshard.packer_service.shards.store import Folder
from preshard.schemas.files.filesystem import FileRefusedError
from preshard.schemas.files.regular import leads_outside

MOST_CHARACTERS = 300
"""Longest reason given for a fault; messages may quote values of any length."""


class RefusedError(OSError):
    """The service does not read this file; the text says why, without a path outside the dataset."""


class OutsideError(RefusedError):
    """A link leads out of the root."""


def reason_of(error: BaseException) -> str:
    """An error in one line. Errors of the operating system are given without their paths."""
    if isinstance(error, RefusedError | FileRefusedError):
        return str(error)
    if isinstance(error, OSError):
        return f"a file cannot be read ({error.strerror or type(error).__name__})"
    if isinstance(error, MemoryError):
        return "reading it takes more memory than the service gives one dataset"
    return " ".join(str(error).split())[:MOST_CHARACTERS]


class ServedFolder:
    """A folder at a path below the root. Paths come from listing the root, never from a request.

    On a local disk every path is resolved before anything is opened: a link may lead anywhere below the root, but not
    outside it. An object store has no links.
    """

    def __init__(self, root: str, path: str = "") -> None:
        self._top = Folder(root)
        self.path = path
        self._folder = self._top / path if path else self._top
        self._limit = Path(self._top.path("")).resolve() if self._top.is_local else None

    @property
    def is_local(self) -> bool:
        return self._limit is not None

    def child(self, name: str) -> ServedFolder:
        return ServedFolder(self._top.location, f"{self.path}/{name}" if self.path else name)

    def is_within(self, name: str = "") -> bool:
        """Whether a file, or the folder itself, lies below the root once links are followed.

        So does what a snapshot below the root, in a cache of the Hugging Face Hub, has among the cache's blobs.
        """
        if self._limit is None:
            return True
        path = self._folder.path(name)
        if not leads_outside(path, self._limit):
            return True
        if not name or leads_outside(self._folder.path(""), self._limit):
            return False
        return not leads_outside(path, Path(self._folder.path("")).resolve())

    def has_file(self, name: str) -> bool:
        """Whether there is such a file, also where a link leads out of the root. It is not opened."""
        return self._folder.is_file(name)

    def entries(self) -> dict[str, bool]:
        """Names directly in the folder, sorted, and whether each is a folder. What is neither is left out.

        On a local disk so is what has no name in Unicode, since no answer could tell of it.
        """
        if not self.is_within():
            return {}
        if self._limit is None:
            return self._folder.entries()
        found: dict[str, bool] = {}
        with os.scandir(self._folder.path("")) as entries:
            for entry in entries:
                with suppress(OSError):  # a circle of links
                    if _is_text(entry.name) and (entry.is_dir() or entry.is_file()):
                        found[entry.name] = entry.is_dir()
        return dict(sorted(found.items()))

    def stamp(self, name: str = "") -> tuple[int, int] | None:
        return self._folder.stamp(name) if self.is_within(name) else None

    def sizes(self, name: str) -> dict[str, int]:
        """Bytes of each file that lies directly in a folder of this one."""
        if not self.is_within(name):
            return {}
        if self._limit is None:
            return {entry: size for entry, size in (self._folder / name).sizes().items() if "/" not in entry}
        try:
            with os.scandir(self._folder.path(name)) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if self._is_served(name, entry)}
        except FileNotFoundError:
            return {}

    def _is_served(self, folder: str, entry: os.DirEntry[str]) -> bool:
        """Whether an entry of a local folder is a file; only links can lead elsewhere than the folder itself does."""
        try:
            return entry.is_file() and (not entry.is_symlink() or self.is_within(f"{folder}/{entry.name}"))
        except OSError:  # a circle of links
            return False

    def read(self, name: str, most: int) -> bytes:
        """A whole file.

        Raises:
            FileRefusedError: it is not a regular file, or has more bytes than ``most``.
        """
        with self.open(name, most) as file:
            data: bytes = file.read(most)
        return data

    @contextmanager
    def open(self, name: str, most: int | None = None) -> Iterator[Any]:
        """A file for random access.

        Raises:
            OutsideError: a link leads out of the root.
            FileRefusedError: it is not a regular file, or has more bytes than ``most``.
            FileNotFoundError: no such file.
        """
        if not self.is_within(name):
            raise OutsideError(f"{name} lies outside the root")
        with self._folder.open(name, most) as file:
            yield file


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
