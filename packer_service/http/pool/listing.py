"""The datasets below the root as the process that listens knows them, told by one that looks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn

from packer_service.http.models.datasets import DatasetEntry
from packer_service.http.pool.cooling import Cooling
from packer_service.http.pool.frames import Frame
from packer_service.http.pool.pool import Pool
from packer_service.http.pool.process import EndedError, ReadingProcess
from packer_service.http.pool.template import START_SECONDS
from packer_service.http.problems import no_dataset
from packer_service.http.settings import ServiceSettings

FIRST_WAIT_SECONDS = 25.0
"""Longest wait of a request for the first look through the root, which begins with importing what looks."""

LATER_WAIT_SECONDS = 2.0
"""Longest wait of a request for another look, when the last one is old or did not find what is asked for."""


@dataclass(frozen=True, slots=True)
class Known:
    """A dataset that was found. ``tag`` changes whenever an answer about it can; it is empty where there is none."""

    name: str
    path: str
    tag: str
    entry: DatasetEntry


class Listing:
    """What lies below the root, looked through again when the last look is older than ``rescan_seconds``.

    The look runs in a process of its own. Whatever it finds is known at once, and a folder over which it stands still
    is listed as damaged and left out of the next looks for a while, so that no folder can hide another.
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
        self._at: str | None = None
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
        """Paths below the root of all datasets that are whole, by name."""
        return {known.name: known.path for known in self._known.values() if known.tag}

    def _shown(self, known: Known) -> DatasetEntry:
        tag, reason = self.pool.broken.get(known.name, ("", ""))
        if not known.tag or tag != known.tag:
            return known.entry
        return known.entry.model_copy(update={"state": "damaged", "reason": reason})

    async def fresh(self, name: str | None) -> None:
        """Waits, never for long, until what is known is young enough to answer about a dataset, or about all."""
        age = None if self._looked is None else time.monotonic() - self._looked
        if (self._looking is None or self._looking.done()) and (age is None or age >= self.settings.rescan_seconds):
            self._looking = asyncio.ensure_future(self._look())
        if self._looking is None or self._looking.done():
            return
        is_old = age is None or age >= 2 * self.settings.rescan_seconds + LATER_WAIT_SECONDS
        if is_old or self.settings.rescan_seconds == 0 or (name is not None and name not in self._known):
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_WAIT_SECONDS if age is None else LATER_WAIT_SECONDS):
                    await self._until_told(name, self._looking, is_first=age is None)

    async def _until_told(self, name: str | None, looking: asyncio.Task[None], *, is_first: bool) -> None:
        while not looking.done() and not (is_first and name in self._known):
            news = asyncio.ensure_future(self._news.wait())
            await asyncio.wait({looking, news}, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()

    async def _look(self) -> None:
        """One look through the root, in as many tries as there are folders over which it stands still."""
        while True:
            self._seen, self._at, self._ended = set(), None, asyncio.Event()
            scanner = self._scanner
            if scanner is None or scanner.ended is not None:
                scanner = self._scanner = self.pool.start_scanner(self._told)
                with suppress(EndedError, TimeoutError):
                    async with asyncio.timeout(START_SECONDS):
                        await scanner.wait()
            self._stuck = {path: known for path, known in self._stuck.items() if self._cooling.reason(path)}
            scanner.tell({"skip": list(self._stuck)})
            if await self._is_over(scanner):
                self._known = {name: known for name, known in self._known.items() if name in self._seen}
                break
            scanner.end("it stood still")
            if not self._give_up():
                break
        self._known.update({known.name: known for known in self._stuck.values()})
        self._looked = time.monotonic()
        self._tell_all()

    async def _is_over(self, scanner: ReadingProcess) -> bool:
        """Whether the look came to its end; not, if it ended otherwise or told nothing for too long."""
        while not self._ended.is_set():
            waits = {asyncio.ensure_future(event.wait()) for event in (self._news, scanner.over)}
            done, _ = await asyncio.wait(waits, timeout=self.settings.scan_seconds, return_when=asyncio.FIRST_COMPLETED)
            for wait in waits:
                wait.cancel()
            if not done or scanner.ended is not None:
                return False
        return True

    def _give_up(self) -> bool:
        """Leaves out the folder over which the look stood still, if it was one.

        If it did not start, or the root itself does not answer, the list stays as it is until the next look.
        """
        path, self.complete = self._at, False
        if not path:
            return False
        reason = f"looking at it took longer than {self.settings.scan_seconds:g} seconds, or ended the process"
        self._cooling.fail(path, reason)
        name = path.replace("~", "~0").replace(":", "~1").replace("/", ":") or "root"
        unknown = dict.fromkeys(("dataset_id", "counts", "seq_len", "fill", "shards_total", "changed"))
        entry = DatasetEntry(name=name, state="damaged", reason=reason, shards_done=0, bytes=0, **unknown)
        self._stuck[path] = Known(name, path, "", entry)
        return True

    def _told(self, frame: Frame) -> None:
        head = frame.head
        if "at" in head:
            self._at = str(head["at"])
        elif "found" in head:
            found = head["found"]
            entry = DatasetEntry.model_validate(found["entry"])
            self._known[entry.name] = Known(entry.name, str(found["path"]), str(found["tag"]), entry)
            self._seen.add(entry.name)
            self.found(self._known[entry.name])
        elif "end" in head:
            self.complete = bool(head["end"]) and not self._stuck
            self._ended.set()
        self._tell_all()

    def _tell_all(self) -> None:
        news, self._news = self._news, asyncio.Event()
        news.set()

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
        if self._scanner is not None:
            self._scanner.end("the service ends")
