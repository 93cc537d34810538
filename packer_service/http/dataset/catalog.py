"""The datasets below the root and their states, looked up by name so that no request ever becomes a path."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from preshard.packer_service.http.dataset.cache import Cache
from preshard.packer_service.http.dataset.folder import OutsideError, ServedFolder, reason_of
from preshard.packer_service.http.dataset.reader import Dataset, Stamps, load_dataset
from preshard.packer_service.http.dataset.unfinished import Unfinished, look_at_job
from preshard.packer_service.http.models.datasets import name_below_root
from preshard.packer_service.http.problems import ProblemError, damaged, no_dataset, unfinished
from preshard.packer_service.http.settings import ServiceSettings
from preshard.packer_service.shards.store import Folder, require_answer
from preshard.schemas.errors import ConfigError, PreshardError
from preshard.schemas.filesystem import split_query
from preshard.schemas.manifest import MANIFEST, RUN, SHARDS, WORK
from preshard.schemas.secrets import without_secrets
from preshard.schemas.tables import TABLES


@dataclass(frozen=True, kw_only=True, slots=True)
class Damaged:
    """A dataset that cannot be served, and why."""

    name: str
    reason: str


Found = Dataset | Unfinished | Damaged
"""What a folder below the root turned out to be."""


def require_root(root: str) -> None:
    """Raises ConfigError unless there is such a folder."""
    require_answer("ROOT", root)
    if not Folder(root).exists():
        raise ConfigError(f"ROOT {root}: no such folder")


def name_of(path: str, root: str) -> str:
    """A dataset's path below the root as a single path segment. Different paths have different names."""
    if not path:
        return split_query(without_secrets(root))[0].rstrip("/").rpartition("/")[2] or "root"
    return name_below_root(path)


class Catalog:
    """Every dataset below the root, scanned again when the last scan is older than ``rescan_seconds``.

    A scan lists folders and reads stamps (size, time of change); only what has a new stamp is read again. A fault
    affects one dataset alone: it is listed as damaged, and served again once it is whole.
    """

    def __init__(self, settings: ServiceSettings, cache: Cache) -> None:
        self.settings = settings
        self.cache = cache
        self.complete = True
        self._found: dict[str, Found] = {}
        self._looked: float | None = None
        self._lock = threading.Lock()
        require_root(settings.root)

    def is_due(self) -> bool:
        return self._looked is None or time.monotonic() - self._looked >= self.settings.rescan_seconds

    def snapshot(self) -> dict[str, Found]:
        """What the last scan found, by name in ascending order."""
        return self._found

    def look(self) -> dict[str, Found]:
        """Every dataset by name. While one thread scans again, the others get what the last scan found."""
        if self.is_due() and self._lock.acquire(blocking=self._looked is None or self.settings.rescan_seconds == 0):
            try:
                if self.is_due():
                    self._found = self._scan()
                    self._looked = time.monotonic()
            finally:
                self._lock.release()
        return self._found

    def broken(self) -> dict[str, tuple[str, str]]:
        """Names of the datasets that reading has shown to be broken, each with its tag and the reason."""
        return broken_among(self._found)

    def dataset(self, name: str) -> Dataset:
        """A whole dataset.

        Raises:
            ProblemError: 404 no dataset has that name, 409 it is unfinished or damaged.
        """
        return whole_or_refuse(name, self.look().get(name))

    def _scan(self) -> dict[str, Found]:
        walk = Walk(self.settings)
        found: dict[str, Found] = {}
        for folder in walk.folders():
            name = name_of(folder.path, self.settings.root)
            found[name] = examine(name, folder, self.cache, self._found.get(name))
        self.complete = walk.complete
        return dict(sorted(found.items()))


class Walk:
    """One search for datasets below the root; ``complete`` says afterwards whether it came to an end.

    Args:
        settings: how deep and wide to search.
    """

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.complete = True

    def folders(self) -> Iterator[ServedFolder]:
        """Folders that hold a dataset or a job, breadth first; those are not searched any deeper."""
        waiting = deque([(ServedFolder(self.settings.root), 0)])
        looked = found = 0
        while waiting:
            folder, depth = waiting.popleft()
            looked += 1
            if looked > self.settings.max_folders or found == self.settings.max_datasets:
                self.complete = False
                return
            is_dataset, below = what_lies_in(folder)
            if is_dataset:
                found += 1
                yield folder
            elif below and depth == self.settings.max_depth:
                self.complete = False
            else:
                waiting.extend((folder.child(name), depth + 1) for name in below)


def what_lies_in(folder: ServedFolder) -> tuple[bool, list[str]]:
    """Whether a folder holds a dataset or a job, and, where it does not, the folders in it that may."""
    if not folder.is_within():  # a link; nothing outside of the root is read, but a dataset there is named
        return folder.has_file(MANIFEST), []
    try:
        entries = folder.entries()
    except OSError:  # we may not read this folder, so it holds nothing that we serve
        return False, []
    if entries.get(MANIFEST) is False or entries.get(WORK):
        return True, []
    return False, [name for name, is_folder in entries.items() if is_folder and not name.startswith(".")]


def stamps_of(folder: ServedFolder) -> Stamps:
    """The stamps of everything that says whether a dataset has changed. The first is the manifest's."""
    return tuple(folder.stamp(file) for file in (MANIFEST, RUN, SHARDS, *TABLES))


def examine(
    name: str,
    folder: ServedFolder,
    cache: Cache,
    before: Found | None = None,
    *,
    looks_at_shards: bool = True,
) -> Found:
    """What a folder is: a dataset, a job, or something damaged. ``before`` is what it was, and stays if it can."""
    try:
        stamps = stamps_of(folder)
        if not folder.is_within(MANIFEST):
            raise OutsideError("a link leads out of the root; move the dataset below it, or serve a folder above both")
        if stamps[0] is None:
            return look_at_job(name, folder)
        if isinstance(before, Dataset) and before.broken is None and before.stamps == stamps:
            return before
        found = load_dataset(name, folder, stamps, cache, looks_at_shards=looks_at_shards)
        if isinstance(before, Damaged) or (isinstance(before, Dataset) and before.broken is not None):
            found.check_tables()  # or it would be listed as whole until the next request reads the broken table
        return found
    except ProblemError as problem:
        return Damaged(name=name, reason=problem.detail.removeprefix(f"{name}: "))
    except (PreshardError, OSError, pa.ArrowException, ValueError, MemoryError) as error:
        return Damaged(name=name, reason=reason_of(error))


def broken_among(found: Mapping[str, Found]) -> dict[str, tuple[str, str]]:
    """Names of the datasets that reading has shown to be broken, each with its tag and the reason."""
    return {
        name: (each.tag, each.broken)
        for name, each in list(found.items())
        if isinstance(each, Dataset) and each.broken is not None
    }


def whole_or_refuse(name: str, found: Found | None) -> Dataset:
    """A dataset that can be served.

    Raises:
        ProblemError: 404 no dataset has that name, 409 it is unfinished or damaged.
    """
    if isinstance(found, Dataset) and found.broken is None:
        return found
    if isinstance(found, Unfinished):
        raise unfinished(name, found.reason)
    if found is None:
        raise no_dataset(name)
    raise damaged(name, found.reason if isinstance(found, Damaged) else str(found.broken))
