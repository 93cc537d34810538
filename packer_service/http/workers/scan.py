"""Looks through the root for the process that listens: what lies there, one dataset after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from packer_service.http.answers.entries import entry_of
from packer_service.http.dataset.cache import Cache
from packer_service.http.dataset.catalog import Walk, examine, name_of, stamps_of
from packer_service.http.dataset.reader import Dataset, Stamps
from packer_service.http.settings import ServiceSettings


class Scanner:
    """Keeps what it told of each folder, with the folder's stamps, and no manifest: some are large."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self._told: dict[str, tuple[Stamps, dict[str, Any]]] = {}

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
            name = name_of(folder.path, self.settings.root)
            known = before.get(folder.path)
            if known is not None and known[0][0] is not None and known[0] == _stamps(folder):
                self._told[folder.path] = known
            else:
                self._told[folder.path] = self._look(name, folder)
            tell({"found": self._told[folder.path][1]})
        tell({"end": walk.complete})

    def _look(self, name: str, folder: Any) -> tuple[Stamps, dict[str, Any]]:
        found = examine(name, folder, Cache(0))
        is_sound = isinstance(found, Dataset)
        # something damaged is examined at every scan: what was wrong need not show in its stamps
        stamps = found.stamps if isinstance(found, Dataset) else (None,)
        tag = found.tag if isinstance(found, Dataset) else ""
        entry = entry_of(found).model_dump(mode="json")
        return stamps, {"name": name, "path": folder.path, "tag": tag, "whole": is_sound, "entry": entry}


def _stamps(folder: Any) -> Stamps | None:
    try:
        return stamps_of(folder)
    except OSError:
        return None
