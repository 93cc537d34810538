"""Looks through the root for the process that listens: what lies there, one dataset after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from packer_service.http.answers.entries import entry_of
from packer_service.http.dataset.cache import Cache
from packer_service.http.dataset.catalog import Walk, examine, name_of, stamps_of
from packer_service.http.dataset.folder import ServedFolder
from packer_service.http.dataset.reader import Dataset, Stamps
from packer_service.http.settings import ServiceSettings

REST = 20
"""What is not whole is examined again once this many times as long has passed as that took."""


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

    def scan(self, skip: Collection[str], tell: Callable[[dict[str, Any]], None]) -> None:
        """Tells of every dataset below the root.

        Args:
            skip: paths of folders that are not looked into.
            tell: gets ``{"at": path}`` before a folder is read, ``{"found": {...}}`` for each dataset, and
                ``{"end": complete}`` last.
        """
        walk = Walk(self.settings, skip, lambda path: tell({"at": path}))
        before, self._told = self._told, {}
        for folder in walk.folders():
            known, stamps = before.get(folder.path), _stamps(folder)
            if known is None or known.stamps != stamps or time.monotonic() >= known.until:
                known = self._examined(folder, stamps)
            self._told[folder.path] = known
            tell({"found": known.found})
        tell({"end": walk.complete})

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
