"""One look through the root by several threads, of which one that waits for its folder holds up no other."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable, Collection
from typing import Any

from preshard.packer_service.http.dataset.catalog import what_lies_in
from preshard.packer_service.http.dataset.folder import ServedFolder
from preshard.packer_service.http.settings import ServiceSettings

SLOW_SECONDS = 0.3
"""Time after which a folder no longer counts among those that are looked at at once."""

MOST_THREADS = 64
"""Threads at once, those that wait for slow folders included."""

Tell = Callable[[dict[str, Any]], None]


class Look:
    """Finds the datasets below the root, breadth first; folders that hold one are not searched any deeper.

    Args:
        settings: how deep and wide to search.
        skip: paths of folders that are not looked into.
        tell: gets a message before and after each folder, from any thread.
        examined: what is told of a folder that holds a dataset or a job.
        width: folders that are looked at at once, without the slow ones.
        waits: whether slow ones count all the same.
    """

    def __init__(
        self,
        settings: ServiceSettings,
        skip: Collection[str],
        tell: Tell,
        examined: Callable[[ServedFolder], dict[str, Any]],
        *,
        width: int,
        waits: bool = False,
    ) -> None:
        self.settings = settings
        self.skip = skip
        self.tell = tell
        self.examined = examined
        self.width = width
        self.waits = waits
        self._waiting: list[tuple[int, str, ServedFolder]] = []
        self._at: dict[str, float] = {}
        self._threads = self._left = 0
        self._looked = self._found = 0
        self._complete = True
        self._failed: BaseException | None = None
        self._changed = threading.Condition()

    def run(self, root: ServedFolder) -> bool:
        """Looks at the root and all below it; returns whether everything was searched.

        Raises:
            BaseException: what nobody expected of a folder.
        """
        with self._changed:
            self._put(root, 0)
            while self._at or (self._waiting and self._has_room()):
                for _ in range(min(self._free(), len(self._waiting))):
                    self._threads += 1
                    threading.Thread(target=self._work, daemon=True).start()
                self._changed.wait(SLOW_SECONDS / 2)
                if self._failed is not None:
                    raise self._failed
        return self._complete and not self._waiting

    def leave(self, paths: Collection[str]) -> None:
        """Waits for some folders no longer. What their threads find is not told, should they ever end."""
        with self._changed:
            for path in paths:
                if self._at.pop(path, None) is not None:
                    self._threads -= 1
                    self._left += 1
                    self._complete = False
                    self.tell({"left": path})
            self._changed.notify_all()

    def _put(self, folder: ServedFolder, depth: int) -> None:
        if folder.path not in self.skip:
            heapq.heappush(self._waiting, (depth, folder.path, folder))

    def _has_room(self) -> bool:
        """Whether one more folder may be looked at; each that is looked at may turn out to be a dataset."""
        held = self._found + len(self._at)
        return self._looked < self.settings.max_folders and held < self.settings.max_datasets

    def _free(self) -> int:
        """How many more threads may work, below 0 where some are too many."""
        now = time.monotonic()
        slow = 0 if self.waits else sum(now - since >= SLOW_SECONDS for since in self._at.values())
        return min(self.width - (self._threads - slow), MOST_THREADS - self._threads - self._left)

    def _work(self) -> None:
        """Looks at folders while there are any, unless the one that it looks at is left."""
        is_left = False
        try:
            while not is_left and (taken := self._take()) is not None:
                is_left = not self._look_at(*taken)
        except BaseException as error:  # raised where the look is waited for
            self._failed = error
        with self._changed:
            if is_left:
                self._left -= 1
            else:
                self._threads -= 1
            self._changed.notify_all()

    def _take(self) -> tuple[ServedFolder, int] | None:
        """The next folder; None where there is none, or where others are enough to look at it."""
        with self._changed:
            if not self._waiting or not self._has_room() or self._free() < 0:
                return None
            depth, path, folder = heapq.heappop(self._waiting)
            self._looked += 1
            self._at[path] = time.monotonic()
            self.tell({"at": path})
            return folder, depth

    def _look_at(self, folder: ServedFolder, depth: int) -> bool:
        """Tells what a folder is; False where it was left meanwhile."""
        is_dataset, below = what_lies_in(folder)
        told = {"found": self.examined(folder)} if is_dataset else {"past": folder.path}
        with self._changed:
            if self._at.pop(folder.path, None) is None:
                return False
            self._found += is_dataset
            if below and depth == self.settings.max_depth:
                self._complete = False
            else:
                for name in below:
                    self._put(folder.child(name), depth + 1)
            self.tell(told)
            self._changed.notify_all()
        return True
