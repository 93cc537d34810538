"""The datasets below the root as the process that listens knows them, told by one that looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from preshard.packer_service.http.models.datasets import DatasetEntry, name_below_root
from preshard.packer_service.http.pool.cooling import Cooling
from preshard.packer_service.http.pool.frames import Frame
from preshard.packer_service.http.pool.pool import Pool
from preshard.packer_service.http.pool.process import EndedError, ReadingProcess
from preshard.packer_service.http.pool.template import START_SECONDS
from preshard.packer_service.http.problems import no_dataset
from preshard.packer_service.http.settings import ServiceSettings

FIRST_WAIT_SECONDS = 25.0
"""Longest wait of a request for the first look through the root, which begins with importing what looks."""

LATER_WAIT_SECONDS = 2.0
"""Longest wait of a request for another look, when the last one is old or did not find what is asked for."""

SETTLED_SECONDS = 1.0
"""Time without an answer after which no request waits for another folder than its own. The look itself goes on."""

LEAVE_SECONDS = 2.0
"""Time in which a process that looks says that it goes on without a folder, unless something in it stands still."""

MOST_LEFT = 32
"""Folders that a process has left, and whose threads still wait in it, after which another one takes its place."""


@dataclass(frozen=True, slots=True)
class Known:
    """A dataset that was found. ``tag`` changes whenever an answer about it can; it is empty where there is none."""

    name: str
    path: str
    tag: str
    entry: DatasetEntry


class Listing:
    """What lies below the root, looked through again when the last look is older than ``rescan_seconds``.

    The look runs in a process of its own, at several folders side by side. Whatever it finds is known at once. A folder
    that takes too long, or ends the process, is listed as damaged and left out of the next looks for a while, so that
    no folder can hide another.
    """

    def __init__(self, settings: ServiceSettings, pool: Pool) -> None:
        self.settings = settings
        self.pool = pool
        self.complete = False
        self.found: Callable[[Known], None] = lambda _: None
        """Called with each dataset that a look finds."""
        self._known: dict[str, Known] = {}
        self._cooling = Cooling()
        self._stuck: dict[str, Known] = {}
        self._seen: set[str] = set()
        self._scanner: ReadingProcess | None = None
        self._at: dict[str, float] = {}
        self._leaving: set[str] = set()
        self._n_left = 0
        self._heard = 0.0
        self._ended: asyncio.Event = asyncio.Event()
        self._news: asyncio.Event = asyncio.Event()
        self._looking: asyncio.Task[None] | None = None
        self._looked: float | None = None

    def look(self) -> dict[str, DatasetEntry]:
        """The entries of the list, by name in ascending order."""
        return {name: self._shown(known) for name, known in sorted(self._known.items())}

    snapshot = look

    def is_due(self) -> bool:
        """False: requests wait for :meth:`fresh` instead."""
        return False

    def dataset(self, name: str) -> NoReturn:
        """No dataset is read in this process."""
        raise no_dataset(name)

    def broken(self) -> dict[str, tuple[str, str]]:
        return self.pool.broken

    @property
    def has_looked(self) -> bool:
        """Whether a look has come to its end; until then a dataset may be there that is not known."""
        return self._looked is not None

    def find(self, name: str) -> Known | None:
        """A dataset in its present state."""
        known = self._known.get(name)
        return None if known is None else Known(known.name, known.path, known.tag, self._shown(known))

    def places(self) -> dict[str, str]:
        """Paths below the root of all datasets, by name, but for those that took too long to look at.

        Those that are not whole are among them: whoever asks for one is told what is wrong with it.
        """
        return {known.name: known.path for known in self._known.values() if known.path not in self._stuck}

    def _shown(self, known: Known) -> DatasetEntry:
        tag, reason = self.pool.broken.get(known.name, ("", ""))
        if not known.tag or tag != known.tag:
            return known.entry
        return known.entry.model_copy(update={"state": "damaged", "reason": reason})

    async def fresh(self, name: str | None) -> None:
        """Waits, never for long, until what is known is young enough to answer about a dataset, or about all."""
        age = None if self._looked is None else time.monotonic() - self._looked
        if (self._looking is None or self._looking.done()) and (age is None or age >= self.settings.rescan_seconds):
            self._seen = set()
            self._looking = asyncio.ensure_future(self._look())
        if self._looking is None or self._looking.done():
            return
        is_old = age is None or age >= 2 * self.settings.rescan_seconds + LATER_WAIT_SECONDS
        if is_old or self.settings.rescan_seconds == 0 or (name is not None and name not in self._known):
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_WAIT_SECONDS if age is None else LATER_WAIT_SECONDS):
                    await self._until_told(name, self._looking)

    async def _until_told(self, name: str | None, looking: asyncio.Task[None]) -> None:
        """Until a dataset was found, or all of them were but those whose folders do not answer."""
        while not (looking.done() or name in self._seen or (self._is_settled() and not self._may_hold(name))):
            news = asyncio.ensure_future(self._news.wait())
            await asyncio.wait({looking, news}, timeout=SETTLED_SECONDS / 4, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()

    def _is_settled(self) -> bool:
        """Whether nothing is looked at but folders that have not answered for a while; the root itself is no such."""
        now = time.monotonic()
        is_quiet = now - self._heard > SETTLED_SECONDS / 2  # else the next folder may be about to be told
        return is_quiet and bool(self._at) and all(path and now - at > SETTLED_SECONDS for path, at in self._at.items())

    def _may_hold(self, name: str | None) -> bool:
        """Whether a dataset may be in one of the folders that are looked at: a large one takes a while."""
        names = [name_below_root(path) for path in self._at]
        return name is not None and any(name == other or name.startswith(f"{other}:") for other in names)

    async def _look(self) -> None:
        """One look through the root, in as many tries as there are folders that end the process."""
        alone = False
        while True:
            scanner = await self._begin(alone=alone)
            is_over = await self._is_over(scanner)
            if self._n_left or not is_over:
                scanner.end("it stood still")  # and threads in it with it
            if is_over:
                self._known = {name: known for name, known in self._known.items() if name in self._seen}
                break
            if self._n_left >= MOST_LEFT:
                continue
            suspects = list(self._at)
            if suspects in ([], [""]):
                self.complete = False
                break  # nothing starts, or the root itself does not answer: the list stays as it is
            if len(suspects) == 1:
                self._give_up(suspects[0], "looking at it ended the process that looked, or stood still in it")
            alone = alone or len(suspects) > 1
        self._known.update({known.name: known for known in self._stuck.values()})
        self._looked = time.monotonic()
        self._tell_all()

    async def _begin(self, *, alone: bool) -> ReadingProcess:
        """The process that looks, once it has been told to; a new one where the last one has ended."""
        self._at, self._leaving, self._n_left, self._ended = {}, set(), 0, asyncio.Event()
        scanner = self._scanner
        if scanner is None or scanner.ended is not None:
            scanner = self._scanner = self.pool.start_scanner(self._told)
            with suppress(EndedError, TimeoutError):
                async with asyncio.timeout(START_SECONDS):
                    await scanner.wait()
        self._stuck = {path: known for path, known in self._stuck.items() if self._cooling.reason(path)}
        scanner.tell({"skip": list(self._stuck), "alone": alone})
        return scanner

    async def _is_over(self, scanner: ReadingProcess) -> bool:
        """Whether the look came to its end; not, if the process ended, stood still, or has left too many folders."""
        while not self._ended.is_set():
            waits = {asyncio.ensure_future(event.wait()) for event in (self._news, scanner.over)}
            done, _ = await asyncio.wait(waits, timeout=self._patience(), return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            late = self._late() - self._leaving
            if scanner.ended is not None or self._n_left >= MOST_LEFT or "" in late or not (done or late):
                return False
            if late:
                self._leaving |= late
                scanner.tell({"leave": sorted(late)})
        return True

    def _late(self) -> set[str]:
        """Folders that are looked at for too long."""
        latest = time.monotonic() - self.settings.scan_seconds
        return {path for path, since in self._at.items() if since <= latest}

    def _patience(self) -> float:
        """Seconds in which something will be told, or a folder will be late, unless the process stands still."""
        since = min((since for path, since in self._at.items() if path not in self._leaving), default=time.monotonic())
        left = max(since + self.settings.scan_seconds - time.monotonic(), 0.0)
        return min(left, LEAVE_SECONDS, self.settings.scan_seconds) if self._leaving else left

    def _give_up(self, path: str, reason: str) -> None:
        """Lists a folder as damaged, and leaves it out for a while."""
        self._at.pop(path, None)
        self._leaving.discard(path)
        self.complete = False
        self._cooling.fail(path, reason)
        name = name_below_root(path)
        unknown = dict.fromkeys(("dataset_id", "counts", "seq_len", "fill", "shards_total", "packed"))
        entry = DatasetEntry(name=name, state="damaged", reason=reason, shards_done=0, bytes=0, **unknown)
        self._stuck[path] = self._known[name] = Known(name, path, "", entry)
        self._seen.add(name)

    def _told(self, frame: Frame) -> None:
        head, self._heard = frame.head, time.monotonic()
        if "at" in head:
            self._at[str(head["at"])] = self._heard
        elif "past" in head:
            self._is_past(str(head["past"]))
        elif "left" in head:
            self._n_left += 1
            self._give_up(str(head["left"]), f"looking at it took longer than {self.settings.scan_seconds:g} seconds")
        elif "found" in head:
            found = head["found"]
            entry = DatasetEntry.model_validate(found["entry"])
            self._is_past(str(found["path"]))
            self._known[entry.name] = Known(entry.name, str(found["path"]), str(found["tag"]), entry)
            self._seen.add(entry.name)
            self.found(self._known[entry.name])
        elif "end" in head:
            self.complete = bool(head["end"]) and not self._stuck
            self._ended.set()
        self._tell_all()

    def _is_past(self, path: str) -> None:
        self._at.pop(path, None)
        self._leaving.discard(path)

    def _tell_all(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        if self._scanner is not None:
            self._scanner.end("the service ends")
