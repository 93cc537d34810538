"""What was derived of a large dataset before, kept on this machine's disk: figures, and values of every pack.

A million packs have hundreds of millions of loads, which take seconds to decode. What answers need of them is derived
once (:mod:`preshard.packer_service.http.dataset.derive`) and lies in a folder named by the dataset's tag, which changes
with its files. Nothing is ever changed in such a folder: it gets its name when it is complete.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

FIGURES = "figures.json"
"""File of the figures, by name."""

VALUES = ".npy"
"""Ending of the files of values, which are read in place."""

UNFINISHED = ".making-"
"""Beginning of the names of folders that are being written."""

FORM = 3
"""Raised with every change of what is derived: what an earlier version left is not read, and makes room in time."""


class Derived:
    """What was derived of one dataset."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._figures: dict[str, Any] = json.loads((folder / FIGURES).read_bytes())
        self._values: dict[str, np.ndarray] = {}

    def figures(self, name: str) -> Any:
        """Figures by their name, as JSON has them; None where they are not there."""
        return self._figures.get(name)

    def values(self, name: str) -> np.ndarray | None:
        """One value of each pack, or of each document, mapped and not read; None where they are not there."""
        if name not in self._values:
            try:
                mapped = np.load(self._folder / f"{name}{VALUES}", mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError):
                return None
            self._values[name] = np.asarray(mapped)  # NumPy's own class of mapped arrays makes each slice dear
        return self._values[name]

    def bytes(self, name: str) -> np.ndarray | None:
        """The bytes of a file, mapped and not read; None where it is not there."""
        with suppress(OSError, ValueError):
            return np.asarray(np.memmap(self._folder / name, np.uint8, mode="r"))
        return None


class DerivedFolder:
    """The folder that holds what was derived of every dataset.

    Args:
        path: the folder, which belongs to the service alone; None keeps nothing.
        limit: most bytes of all of it.
    """

    def __init__(self, path: str | None, limit: int) -> None:
        self.path = None if path is None else Path(path)
        self.limit = limit

    def has(self, tag: str) -> bool:
        """Whether something was derived of the dataset that has this tag."""
        return self.path is not None and (self.path / folder_name(tag) / FIGURES).is_file()

    def open(self, tag: str) -> Derived | None:
        """What was derived of the dataset that has this tag; None where nothing was."""
        if self.path is None:
            return None
        try:
            return Derived(self.path / folder_name(tag))
        except (OSError, ValueError):
            return None

    def is_writable(self) -> bool:
        """Makes the folder if it is not there, for this user alone."""
        if self.path is None:
            return False
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError:
            return False
        return os.access(self.path, os.W_OK) and self.path.stat().st_uid == os.geteuid()

    def write(self, tag: str, make: Callable[[Path], dict[str, Any]]) -> None:
        """Keeps what ``make`` writes into a folder, and the figures that it returns; makes room for it.

        Raises:
            OSError: the folder cannot be written.
        """
        assert self.path is not None
        making = self.path / f"{UNFINISHED}{tag}"
        shutil.rmtree(making, ignore_errors=True)  # of a process that was ended
        making.mkdir(mode=0o700)
        try:
            figures = make(making)
            (making / FIGURES).write_text(json.dumps(figures), encoding="utf-8")
            making.rename(self.path / folder_name(tag))
        finally:
            shutil.rmtree(making, ignore_errors=True)
        self._make_room(folder_name(tag))

    def _make_room(self, newest: str) -> None:
        """Removes the oldest while all together have more bytes than the limit."""
        assert self.path is not None
        sizes = {}
        for folder in self.path.iterdir():
            if folder.name != newest and folder.is_dir():
                sizes[folder] = (folder.stat().st_mtime, _bytes_of(folder))
        room = self.limit - _bytes_of(self.path / newest)
        for folder, (_, size) in sorted(sizes.items(), key=lambda entry: -entry[1][0]):
            room -= size
            if room < 0:
                shutil.rmtree(folder, ignore_errors=True)


def folder_name(tag: str) -> str:
    """The name of the folder for the dataset that has this tag."""
    return f"{tag}-{FORM}"


def _bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def pack_column(name: str) -> str:
    """What a column of ``packs.parquet`` is called among the values."""
    return f"pack-{name}"


def save_values(folder: Path, name: str, values: np.ndarray) -> None:
    """Writes values that :meth:`Derived.values` finds by their name."""
    np.save(folder / f"{name}{VALUES}", values, allow_pickle=False)
