"""Which datasets lie below the root, in which state; looked up by name, so that no request ever becomes a path."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from packer_service.http.dataset.cache import Cache
from packer_service.http.dataset.dataset import Dataset, load_dataset
from packer_service.http.dataset.inside import Inside, OutsideError
from packer_service.http.dataset.unfinished import Unfinished, look_at_job
from packer_service.http.problems import ProblemError, damaged, not_found, reason_of
from packer_service.http.settings import ServiceSettings
from packer_service.shards.store import Folder
from schemas.errors import ConfigError, PreshardError
from schemas.filesystem import split_query
from schemas.manifest import MANIFEST, RUN, SHARDS, WORK
from schemas.tables import TABLES


@dataclass(frozen=True, kw_only=True, slots=True)
class Damaged:
    """A dataset that cannot be served, and why."""

    name: str
    reason: str


Served = Dataset | Unfinished | Damaged


def name_of(path: str, root: str) -> str:
    """A dataset's path below the root as one path segment. Different paths have different names."""
    if not path:
        return split_query(root)[0].rstrip("/").rpartition("/")[2] or "root"
    return path.replace("~", "~0").replace(":", "~1").replace("/", ":")


class Catalog:
    """Every dataset below the root, looked at again when the last look is older than ``rescan_seconds``.

    A look lists folders and reads stamps (size, time of change); only what has another stamp is read again. One
    dataset's fault is that dataset's: it is listed as damaged, and served again once it is whole.
    """

    def __init__(self, settings: ServiceSettings, cache: Cache) -> None:
        self.settings = settings
        self.cache = cache
        self.complete = True
        self._served: dict[str, Served] = {}
        self._looked: float | None = None
        self._lock = threading.Lock()
        if not Folder(settings.root).exists():
            raise ConfigError(f"ROOT {settings.root}: no such folder")

    def is_due(self) -> bool:
        return self._looked is None or time.monotonic() - self._looked >= self.settings.rescan_seconds

    def snapshot(self) -> dict[str, Served]:
        """What was seen at the last look, by name in ascending order."""
        return self._served

    def look(self) -> dict[str, Served]:
        """Every dataset by name. While one thread looks anew, others get what was seen before."""
        if self.is_due() and self._lock.acquire(blocking=self._looked is None or self.settings.rescan_seconds == 0):
            try:
                if self.is_due():
                    self._served = self._look_anew()
                    self._looked = time.monotonic()
            finally:
                self._lock.release()
        return self._served

    def dataset(self, name: str) -> Dataset:
        """A dataset that is whole.

        Raises:
            ProblemError: 404 there is none of that name, 409 it is unfinished or damaged.
        """
        found = self.look().get(name)
        if found is None:
            raise not_found(
                "dataset", f"There is no dataset {name!r:.200} below the root; /v1/datasets lists those there are."
            )
        if isinstance(found, Dataset) and found.broken is None:
            return found
        if isinstance(found, Unfinished):
            raise ProblemError(409, "dataset-unfinished", "Dataset unfinished", f"{name}: {found.reason}")
        raise damaged(name, found.reason if isinstance(found, Damaged) else str(found.broken))

    def _look_anew(self) -> dict[str, Served]:
        served: dict[str, Served] = {}
        for folder in self._folders():
            name = name_of(folder.path, self.settings.root)
            served[name] = self._serve(name, folder)
            if len(served) == self.settings.max_datasets:
                self.complete = False
                break
        return dict(sorted(served.items()))

    def _folders(self) -> Iterator[Inside]:
        """Folders that hold a dataset or a job, breadth first; nothing is looked for inside of them."""
        self.complete = True
        waiting = deque([(Inside(self.settings.root), 0)])
        looked = 0
        while waiting:
            folder, depth = waiting.popleft()
            looked += 1
            if looked > self.settings.max_folders:
                self.complete = False
                return
            try:
                entries = folder.entries()
            except OSError:  # a folder that may not be read is none of ours
                continue
            if entries.get(MANIFEST) is False or entries.get(WORK):
                yield folder
                continue
            below = [name for name, is_folder in entries.items() if is_folder and not name.startswith(".")]
            if below and depth == self.settings.max_depth:
                self.complete = False
                continue
            waiting.extend((folder.child(name), depth + 1) for name in below)

    def _serve(self, name: str, folder: Inside) -> Served:
        before = self._served.get(name)
        try:
            stamps = tuple(folder.stamp(file) for file in (MANIFEST, RUN, SHARDS, *TABLES))
            if not folder.is_within(MANIFEST):
                raise OutsideError(f"{MANIFEST} lies outside of what is served")
            if stamps[0] is None:
                return look_at_job(name, folder)
            if isinstance(before, Dataset) and before.broken is None and before.stamps == stamps:
                return before
            found = load_dataset(name, folder, stamps, self.cache)
            if isinstance(before, Damaged) or (isinstance(before, Dataset) and before.broken is not None):
                found.check_tables()  # once bitten: else it would be listed as whole until the next question
            return found
        except ProblemError as problem:
            return Damaged(name=name, reason=problem.detail.removeprefix(f"{name}: "))
        except (PreshardError, OSError, pa.ArrowException, ValueError) as error:
            return Damaged(name=name, reason=reason_of(error))
