"""Looks through the root for the process that listens, several folders side by side."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from preshard.packer_service.http.answers.entries import entry_of
from preshard.packer_service.http.dataset.cache import Cache
from preshard.packer_service.http.dataset.catalog import examine, name_of, stamps_of
from preshard.packer_service.http.dataset.folder import ServedFolder
from preshard.packer_service.http.dataset.reader import Dataset, Stamps
from preshard.packer_service.http.settings import ServiceSettings
from preshard.packer_service.http.workers.look import MOST_THREADS, Look, Tell

REST = 20
"""What is not whole is examined again once this many times as long has passed as that took."""

LOCAL, REMOTE = 2, 16
"""Folders that are looked at at once. A disk answers at once, and an object store some tens of milliseconds later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Told:
    """What was told of a folder, the stamps that it had, and until when that holds while the stamps are the same."""

    stamps: Stamps | None
    until: float
    found: dict[str, Any]


class Scanner:
    """Keeps what it told of each folder, and no manifest: some are large."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self._told: dict[str, _Told] = {}
        self._look: Look | None = None

    def scan(self, skip: Collection[str], tell: Tell, *, alone: bool = False) -> None:
        """Tells of every dataset below the root.

        Args:
            skip: paths of folders that are not looked into.
            tell: gets ``{"at": path}`` before a folder is read, then ``{"found": {...}}`` for a dataset and
                ``{"past": path}`` for any other folder, and ``{"end": complete}`` last.
            alone: whether each folder is looked at by itself, since one of them has ended the process before.
        """
        before, self._told = self._told, {}
        # Arrow has 8, and a listing that never comes takes one; a store's client has as many connections as there were
        # of them when it was made
        pa.set_io_thread_count(MOST_THREADS)
        root = ServedFolder(self.settings.root)

        def examined(folder: ServedFolder) -> dict[str, Any]:
            known, stamps = before.get(folder.path), _stamps(folder)
            if known is None or known.stamps != stamps or time.monotonic() >= known.until:
                known = self._examined(folder, stamps)
            self._told[folder.path] = known
            return known.found

        width = 1 if alone else LOCAL if root.is_local else REMOTE
        self._look = Look(self.settings, skip, tell, examined, width=width, waits=alone)
        tell({"end": self._look.run(root)})

    def leave(self, paths: Collection[str]) -> None:
        """Goes on without folders that are still being looked at, and tells ``{"left": path}`` of each."""
        if self._look is not None:
            self._look.leave(paths)

    def _examined(self, folder: ServedFolder, stamps: Stamps | None) -> _Told:
        """A folder as it is now. What is wrong with it, or how far a job is, need not show in its stamps."""
        began = time.monotonic()
        name = name_of(folder.path, self.settings.root)
        found = examine(name, folder, Cache(0))
        now = time.monotonic()
        is_whole = isinstance(found, Dataset)
        return _Told(
            stamps=stamps,
            until=float("inf") if is_whole else now + REST * (now - began),
            found={
                "path": folder.path,
                "tag": found.tag if isinstance(found, Dataset) else "",
                "entry": entry_of(found).model_dump(mode="json"),
            },
        )


def _stamps(folder: ServedFolder) -> Stamps | None:
    try:
        return stamps_of(folder)
    except OSError:
        return None
