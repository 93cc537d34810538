"""Datasets by names that are already known, each opened when it is first asked for."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

from preshard.packer_service.http.dataset.cache import Cache
from preshard.packer_service.http.dataset.catalog import Found, broken_among, examine, whole_or_refuse
from preshard.packer_service.http.dataset.folder import ServedFolder
from preshard.packer_service.http.dataset.reader import Dataset
from preshard.packer_service.http.settings import ServiceSettings


class Shelf:
    """Stands in for a ``Catalog`` (:mod:`preshard.packer_service.http.dataset.catalog`) where another process looks.

    A dataset's stamps are looked at again when the last look is older than ``rescan_seconds``.

    Args:
        settings: the root, and how long a look lasts.
        cache: what datasets keep their columns in.
        places: paths below the root, by name.
    """

    complete = True

    def __init__(self, settings: ServiceSettings, cache: Cache, places: Mapping[str, str]) -> None:
        self.settings = settings
        self.cache = cache
        self.places = dict(places)
        self._found: dict[str, Found] = {}
        self._looked: dict[str, float] = {}
        self._lock = threading.Lock()

    @classmethod
    def empty(cls, settings: ServiceSettings) -> Shelf:
        """A shelf without datasets."""
        return cls(settings, Cache(0), {})

    def is_due(self) -> bool:
        """Whether a dataset that was opened is to be looked at again."""
        return len(self.places) == 1 and self._is_old(next(iter(self.places)))

    def _is_old(self, name: str) -> bool:
        return time.monotonic() - self._looked.get(name, -1e9) >= self.settings.rescan_seconds

    def look(self) -> dict[str, Found]:
        """Looks at the dataset again where there is only one; several are looked at as they are asked for."""
        if len(self.places) == 1:
            self._look_at(next(iter(self.places)))
        return self._found

    def snapshot(self) -> dict[str, Found]:
        """What has been opened until now, by name."""
        return self._found

    def dataset(self, name: str) -> Dataset:
        """A whole dataset.

        Raises:
            ProblemError: 404 no dataset has that name, 409 it is unfinished or damaged.
        """
        if name in self.places and (self.is_due() or name not in self._found):
            self._look_at(name)
        return whole_or_refuse(name, self._found.get(name))

    def _look_at(self, name: str) -> None:
        with self._lock:
            if self._is_old(name):
                folder = ServedFolder(self.settings.root, self.places[name])
                self._found[name] = examine(
                    name,
                    folder,
                    self.cache,
                    self._found.get(name),
                    looks_at_shards=False,
                )
                self._looked[name] = time.monotonic()

    def broken(self) -> dict[str, tuple[str, str]]:
        """Names of the datasets that reading has shown to be broken, each with its tag and the reason."""
        return broken_among(self._found)
