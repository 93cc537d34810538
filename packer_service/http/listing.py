"""The datasets below the root as the process that listens knows them. Each folder is looked at in another process."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from preshard.packer_service.http.models.datasets import DatasetEntry, name_below_root
from preshard.packer_service.http.pool import TEMPLATE, Cooling, Pool, parse_reply
from preshard.packer_service.http.problems import busy, damaged, no_dataset, unfinished
from preshard.packer_service.http.settings import ServiceSettings
from preshard.packer_service.http.worker import MOST_LOOKS, look_at
from preshard.packer_service.runtime.forks import EndedError, Fork
from preshard.schemas.files.filesystem import is_remote

MAX_DEPTH, MAX_FOLDERS, MAX_DATASETS = 6, 10_000, 1000
"""Most folders between the root and a dataset, folders that are searched, and datasets that are listed."""

LOCAL, REMOTE = 2, 16
"""Folders that are looked at at once. A disk answers at once, and an object store some tens of milliseconds later."""

SLOW_SECONDS = 0.3
"""Time after which a folder no longer counts among those that are looked at at once."""

QUICK_SECONDS, MOST_OWN = 2.0, 3
"""Time after which a look gets a process of its own, and such processes at once. A healthy dataset takes a tenth."""

LOOK_MEMORY = 1 << 30
"""Most memory of a process that looks."""

FIRST_WAIT_SECONDS, LATER_WAIT_SECONDS = 25.0, 2.0
"""Longest wait of a request for the first look through the root, and for a later one."""

SETTLED_SECONDS = 1.0
"""Time without news after which no request waits for another folder than its own. The look itself goes on."""

REST = 20
"""Pause before a folder that is not whole is examined again, in multiples of the time that the last look took."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Known:
    """A dataset that was found.

    Attributes:
        name: its name.
        path: where it lies below the root.
        tag: changes whenever an answer about it can; empty where there is none.
        entry: as the list shows it.
        stamps: of its files.
        looked: when it was looked at.
        until: until when that holds while the stamps stay the same.
        broken: what reading has shown to be wrong with it.
    """

    name: str
    path: str
    tag: str
    entry: DatasetEntry
    stamps: Any = None
    looked: float = 0.0
    until: float = 0.0
    broken: str | None = None


class Listing:
    """Folders below the root, looked through again when the last look is older than ``rescan_seconds``.

    Whatever a look finds is known at once. A folder that takes too long, or ends the process, is listed as damaged and
    left out of the next looks for a while, so that no folder can hide another.
    """

    def __init__(self, settings: ServiceSettings, pool: Pool) -> None:
        self.settings = settings
        self.pool = pool
        self.complete = False
        self._known: dict[str, Known] = {}
        self._cooling = Cooling()
        self._scanner = _Scanner(pool)
        self._own = asyncio.Semaphore(MOST_OWN)
        self._turns = asyncio.Semaphore(REMOTE if is_remote(settings.root) else LOCAL)
        self._most = asyncio.Semaphore(MOST_LOOKS)
        self._at: dict[str, float] = {}
        self._visits: dict[str, asyncio.Task[list[str]]] = {}
        self._news = asyncio.Event()
        self._heard = 0.0
        self._looking: asyncio.Task[None] | None = None
        self._seen: set[str] = set()
        self._looked: float | None = None
        self._complete, self._room = True, 0

    def look(self) -> dict[str, DatasetEntry]:
        """The entries of the list, by name in ascending order."""
        return {name: known.entry for name, known in sorted(self._known.items())}

    def count(self, state: str) -> int:
        """The number of datasets in a state."""
        return sum(known.entry.state == state for known in self._known.values())

    def note(self, known: Known, broken: str | None) -> None:
        """Notes what reading a dataset has shown to be wrong with it."""
        now = self._known.get(known.name)
        if broken is not None and now is not None and now.tag == known.tag and now.broken is None:
            entry = now.entry.model_copy(update={"state": "damaged", "reason": broken})
            self._known[known.name] = replace(now, broken=broken, entry=entry, until=0.0)

    async def find(self, name: str, *, at_once: bool = False) -> Known:
        """A whole dataset in its present state; a look at it is at most ``rescan_seconds`` old.

        Args:
            name: the dataset's.
            at_once: whether to look at it in any case.

        Raises:
            ProblemError: 404 no dataset has that name, 409 it is unfinished or damaged, 503 nobody knows yet.
        """
        known = self._known.get(name)
        if known is None:
            await self.fresh(name)
        elif at_once or time.monotonic() - known.looked >= self.settings.rescan_seconds:
            visit = self._visit(known.path)
            if at_once or self._is_old(known.looked):
                await asyncio.wait({visit}, timeout=LATER_WAIT_SECONDS)
            if self.settings.rescan_seconds and self._is_due():
                self._begin()
        known = self._known.get(name)
        if known is None and self._looked is None:
            raise busy("The service still looks through the root for the first time.", 5)
        if known is None:
            raise no_dataset(name)
        if known.entry.state == "unfinished":
            raise unfinished(name, str(known.entry.reason))
        if known.entry.state == "damaged":
            raise damaged(name, str(known.entry.reason))
        return known

    async def fresh(self, name: str | None) -> None:
        """Waits, never for long, until what is known is young enough to answer about all datasets, or about one."""
        if not self.settings.rescan_seconds and self._looking is not None:
            await asyncio.wait({self._looking}, timeout=LATER_WAIT_SECONDS)  # it began before this request came
        if self._is_due():
            self._begin()
        looking = self._looking
        if looking is None or looking.done() or not (name is not None or self._is_old(self._looked)):
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_WAIT_SECONDS if self._looked is None else LATER_WAIT_SECONDS):
                while not (looking.done() or name in self._seen or (self._is_settled() and not self._may_hold(name))):
                    news = asyncio.ensure_future(self._news.wait())
                    await asyncio.wait(
                        {looking, news}, timeout=SETTLED_SECONDS / 4, return_when=asyncio.FIRST_COMPLETED
                    )
                    news.cancel()

    def _is_old(self, looked: float | None) -> bool:
        """Whether a request waits for another look; else it is answered by what the last one found."""
        rescan = self.settings.rescan_seconds
        return looked is None or rescan == 0 or time.monotonic() - looked >= 2 * rescan + LATER_WAIT_SECONDS

    def _is_due(self) -> bool:
        is_old = self._looked is None or time.monotonic() - self._looked >= self.settings.rescan_seconds
        return is_old and (self._looking is None or self._looking.done())

    def _begin(self) -> None:
        self._seen = set()
        self._looking = asyncio.ensure_future(self._look())

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
        """Looks at the root and all below it; folders that hold a dataset are not searched any deeper."""
        self._complete, self._room = True, MAX_FOLDERS
        try:
            await self._search("", 0)
        except _RootError:  # the list stays as it is
            self._complete, self._seen = False, set(self._known)
        names = sorted(self._seen)[:MAX_DATASETS]
        self._known = {name: self._known[name] for name in names if name in self._known}
        self.complete = self._complete and len(names) == len(self._seen)
        self._looked = time.monotonic()
        self._tell()

    async def _search(self, path: str, depth: int) -> None:
        self._room -= 1
        below = await self._visit(path) if self._room >= 0 else []
        if self._room < 0 or (below and depth == MAX_DEPTH):
            self._complete = False
        else:
            await asyncio.gather(*(self._search(each, depth + 1) for each in below))

    def _visit(self, path: str) -> asyncio.Task[list[str]]:
        """Looks at one folder, unless that is being done; its result is the folders below it to be looked at."""
        visit = self._visits.get(path)
        if visit is None:
            visit = self._visits[path] = asyncio.ensure_future(self._visit_now(path))
            visit.add_done_callback(lambda _: self._visits.pop(path, None))
        return visit

    async def _visit_now(self, path: str) -> list[str]:
        if (reason := self._cooling.reason(path)) is not None:
            return self._give_up(path, reason.partition(" (")[0])
        known = self._at_path(path)
        async with self._most:
            await self._turns.acquire()
            self._at[path] = time.monotonic()
            asking = asyncio.ensure_future(self._ask(path, known))
            try:
                try:
                    await asyncio.wait({asking}, timeout=SLOW_SECONDS)
                finally:
                    self._turns.release()
                head = await asking
            except (EndedError, TimeoutError) as error:
                if not path:
                    raise _RootError from None
                late = f"looking at it took longer than {self.settings.scan_seconds:g} seconds"
                reason = late if isinstance(error, TimeoutError) else "looking at it ended the process that looked"
                self._cooling.fail(path, reason)
                return self._give_up(path, reason)
            finally:
                asking.cancel()
                self._at.pop(path, None)
                self._tell()
        return self._take(path, known, head)

    def _at_path(self, path: str) -> Known | None:
        if not path:
            return next((known for known in self._known.values() if not known.path), None)
        return self._known.get(name_below_root(path))

    async def _ask(self, path: str, known: Known | None) -> dict[str, Any]:
        """Asks another process to look at a folder.

        One that has no answer soon, or beside which the process ended, gets a process of its own: whatever it holds, no
        look at another waits for it.
        """
        stamps = known.stamps if known is not None and time.monotonic() < known.until else None
        given = (self.settings.root, path, stamps, known is not None and known.entry.state == "damaged")
        seconds = self.settings.scan_seconds
        with suppress(EndedError, TimeoutError):
            return await self._scanner.ask(given, min(seconds, QUICK_SECONDS))
        async with self._own:
            own = _Scanner(self.pool)
            try:
                return await own.ask(given, seconds)
            finally:
                own.end()

    def _take(self, path: str, known: Known | None, head: dict[str, Any]) -> list[str]:
        """Keeps what was said of a folder."""
        now = time.monotonic()
        if "below" in head:
            if known is not None:
                self._known.pop(known.name, None)
            return [f"{path}/{name}" if path else str(name) for name in head["below"]]
        if "same" in head and known is not None:
            # what was noted of it meanwhile stays
            self._known[known.name] = replace(self._known.get(known.name, known), looked=now)
            self._seen.add(known.name)
            return []
        entry = DatasetEntry.model_validate(head["found"])
        present = self._known.get(entry.name)
        if present is not None and present.broken and present.tag == head["tag"] and present is not known:
            self._seen.add(entry.name)  # what was noted of it meanwhile stays
            return []
        rest = float("inf") if entry.state == "whole" else REST * float(head["seconds"])
        self._known[entry.name] = Known(
            name=entry.name,
            path=path,
            tag=str(head["tag"]),
            entry=entry,
            stamps=head["stamps"],
            looked=now,
            until=now + rest if self.settings.rescan_seconds else 0.0,
        )
        self._seen.add(entry.name)
        return []

    def _give_up(self, path: str, reason: str) -> list[str]:
        """Lists a folder as damaged."""
        self._complete = False
        name = name_below_root(path)
        entry = DatasetEntry(name=name, state="damaged", reason=reason)
        self._known[name] = Known(name=name, path=path, tag="", entry=entry, looked=time.monotonic())
        self._seen.add(name)
        return []

    def _tell(self) -> None:
        self._heard = time.monotonic()
        news, self._news = self._news, asyncio.Event()
        news.set()

    def close(self) -> None:
        """Ends the processes that look."""
        for task in (self._looking, *self._visits.values()):
            if task is not None:
                task.cancel()
        self._scanner.end()


class _RootError(Exception):
    """The root itself does not answer."""


class _Scanner:
    """A process that looks, outside of the pool's count; another one where it has ended or a look stands still."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._fork: Fork | None = None

    async def ask(self, given: tuple[Any, ...], seconds: float) -> dict[str, Any]:
        """Looks at a folder in the scanner's process.

        Raises:
            EndedError: the process has ended.
            TimeoutError: the look took too long. The process is ended, since what it still does would slow others.
        """
        if self._fork is None or self._fork.is_over:
            self._fork = TEMPLATE.fork(LOOK_MEMORY)
            self._pool.others.add(self._fork)
        fork = self._fork
        await self._pool.run(fork.wait)
        try:
            async with asyncio.timeout(seconds):
                reply = parse_reply(await self._pool.run(fork.call, look_at, *given))
        except TimeoutError:
            fork.kill()
            raise
        if reply is None:
            fork.kill()
            raise EndedError
        return reply.head

    def end(self) -> None:
        """Kills the process, and threads that stand still in it with it."""
        if self._fork is not None:
            self._fork.kill()
