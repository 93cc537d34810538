"""Which processes there are: one for each dataset in use, as many as the settings admit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Hashable, Mapping
from contextlib import suppress
from typing import Any

from preshard.packer_service.http.pool.cooling import Cooling
from preshard.packer_service.http.pool.frames import Frame
from preshard.packer_service.http.pool.process import EndedError, ReadingProcess
from preshard.packer_service.http.pool.template import START_SECONDS, Template
from preshard.packer_service.http.problems import ProblemError, busy, too_slow
from preshard.packer_service.http.settings import ServiceSettings

LOOK_SECONDS = 0.25
"""Time between two looks at the processes."""

BEHIND_SECONDS = 1.0
"""Time without an answer after which a process usually stands behind all others for a processor."""

ROOM_SECONDS = 2.0
"""Time without an answer after which a process may be ended because another dataset needs its place."""

IDLE_SECONDS = 300.0
"""Time after which a process that nobody asks is ended, and its memory given back."""

QUIET_SECONDS = 1.0
"""Time without a question after which the rest is loaded: who asks of a service that has just started asks for more."""

LATE_SECONDS = 10.0
"""Time after which the rest is loaded even if there was always a question to answer: some need it."""

ANSWERS_SHARE = 4
"""Part of the kept bytes, one over this, that are answers as they were sent; the processes share the rest."""


class WorkerError(Exception):
    """Answering failed in a way that nobody foresaw; the text is the trace."""


class Pool:
    """Asks processes, starting and ending them as needed. Belongs to one event loop."""

    def __init__(self, settings: ServiceSettings) -> None:
        self.settings = settings
        self.cooling = Cooling()
        self.broken: dict[str, tuple[str, str]] = {}
        """Datasets that reading has shown to be broken: their tags, and why."""
        self._template = Template(settings)
        self._processes: dict[Hashable, ReadingProcess] = {}
        self._gone = [0, 0]
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._started = time.monotonic()
        self._asked: float | None = None

    def start(self) -> None:
        self._template.start()
        self._watching = asyncio.ensure_future(self._watch())

    def close(self) -> None:
        """Ends every process, at once."""
        if self._watching is not None:
            self._watching.cancel()
        for process in list(self._processes.values()):
            self._end(process, "the service ends")
        self._template.close()

    async def ask(
        self,
        key: Hashable,
        name: str,
        places: Mapping[str, str],
        head: dict[str, Any],
        body: bytes = b"",
        *,
        seconds: float,
        keep: bool = True,
        urgent_seconds: float = BEHIND_SECONDS,
    ) -> Frame:
        """The answer of the process that belongs to a key.

        Args:
            key: what the process is for. Another key is another process, which this one cannot slow.
            name: how problems name it.
            places: the datasets that the process may read: paths below the root, by name.
            head: the question.
            body: the bytes that belong to it.
            seconds: longest time for the answer, which is also the longest wait for the process.
            keep: whether more questions of this key will come.
            urgent_seconds: time without an answer after which the process stands behind all others for a processor.

        Raises:
            ProblemError: 503 the key is not read at the moment, or its process ended; 504 the answer took too long.
            WorkerError: answering failed.
        """
        self.cooling.require(key, name)
        process = None
        try:
            async with asyncio.timeout(seconds):
                process = await self._enter(key, places)
                process.urgent_seconds = urgent_seconds
                await process.wait()
            frame = await process.ask(head, body, seconds)
        except TimeoutError:
            raise busy(f"{name}: the service works on other datasets; try again later.", 5) from None
        except EndedError as ended:
            raise self._problem_of(ended, process, name, seconds) from None
        finally:
            if process is not None:
                self._leave(process, keep=keep)
        return self._understood(frame, name)

    def _understood(self, frame: Frame, name: str) -> Frame:
        failed = frame.head.get("failed")
        if failed == "memory":
            detail = f"{name}: the answer takes more memory than the service gives one dataset; ask for less."
            raise ProblemError(503, "too-large", "Too large to read", detail)
        if failed is not None:
            raise WorkerError(str(frame.head.get("error")))
        self.broken.update({str(found): (tag, why) for found, (tag, why) in frame.head.get("broken", {}).items()})
        return frame

    def _problem_of(self, ended: EndedError, process: ReadingProcess | None, name: str, seconds: float) -> ProblemError:
        if process is not None and self._processes.get(process.key) is process:
            self._end(process, ended.reason)
            if ended.is_own:
                self.cooling.fail(process.key, ended.reason)
        if "longer than" in ended.reason:
            return too_slow(seconds)
        return busy(f"{name}: {ended.reason}; try again later.", 5)

    async def _enter(self, key: Hashable, places: Mapping[str, str]) -> ReadingProcess:
        """The process of a key, which counts one more user; started if it is not there."""
        while (process := self._processes.get(key)) is None or process.ended is not None:
            if process is not None:
                self._end(process, "it ended")
            if len(self._processes) < self.settings.processes or self._make_room():
                process = self._start(key, places)
                break
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._changed.wait()
        process.users += 1
        process.used = time.monotonic()
        return process

    def _leave(self, process: ReadingProcess, *, keep: bool) -> None:
        process.users -= 1
        process.used = time.monotonic()
        if not keep:
            self._end(process, "its question is answered")
        self._changed.set()

    def _start(self, key: Hashable, places: Mapping[str, str]) -> ReadingProcess:
        def told(frame: Frame) -> None:
            if "ready" in frame.head:
                process.tell({"places": dict(places), "cache_bytes": self._cache_bytes()})

        process = ReadingProcess(key, self._template.fork(), self.settings.threads, told)
        self._processes[key] = process
        self._share_cache()
        return process

    def start_scanner(self, told: Any) -> ReadingProcess:
        """A process outside of the count, for looking through the root."""
        return ReadingProcess("scan", self._template.fork(), 1, told)

    def _make_room(self) -> bool:
        """Ends the process that is idle for longest or, if none is, that works without an answer for longest."""
        now = time.monotonic()
        idle = [process for process in self._processes.values() if process.is_idle]
        if idle:
            self._end(min(idle, key=lambda process: process.used), "another dataset needed its place")
            return True
        stalled = [
            process
            for process in self._processes.values()
            if process.is_busy and process.pid is not None and now - process.answered > ROOM_SECONDS
        ]
        if stalled:
            slowest = min(stalled, key=lambda process: process.answered)
            reason = f"it gave no answer for {now - slowest.answered:.0f} seconds, and another dataset needed its place"
            self.cooling.fail(slowest.key, reason)
            self._end(slowest, reason)
        return bool(stalled)

    def _end(self, process: ReadingProcess, reason: str) -> None:
        process.end(reason)
        if self._processes.get(process.key) is process:
            del self._processes[process.key]
            self._gone = [self._gone[0] + process.cache[2], self._gone[1] + process.cache[3]]
            self._share_cache()
        self._changed.set()

    def _cache_bytes(self) -> int:
        return self.settings.cache_bytes * (ANSWERS_SHARE - 1) // ANSWERS_SHARE // max(len(self._processes), 1)

    def _share_cache(self) -> None:
        for process in self._processes.values():
            process.tell({"cache_bytes": self._cache_bytes()})

    def cache_figures(self) -> tuple[int, int, int, int]:
        """Bytes, entries, hits and misses of all processes, those that have ended included in the last two."""
        sums = [sum(column) for column in zip([0, 0, *self._gone], *self._caches(), strict=True)]
        return sums[0], sums[1], sums[2], sums[3]

    def _caches(self) -> list[list[int]]:
        return [process.cache for process in self._processes.values()]

    def pids(self) -> list[int]:
        """The processes that run."""
        return [process.pid for process in self._processes.values() if process.pid is not None]

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._look(time.monotonic())

    def _look(self, now: float) -> None:
        if self._asked is None or any(process.users for process in self._processes.values()):
            self._asked = now
        if now - self._asked > QUIET_SECONDS or now - self._started > LATE_SECONDS:
            self._template.load()
        for process in list(self._processes.values()):
            if process.is_busy and now - process.answered > process.urgent_seconds:
                process.fall_behind()
            elif process.is_idle and now - process.used > IDLE_SECONDS:
                self._end(process, "nobody asked it")
            elif process.pid is None and now - process.used > START_SECONDS:
                self._end(process, "it did not start")
        sizes = {process: process.own_bytes() for process in self._processes.values()}
        if sum(sizes.values()) > self.settings.memory_bytes:
            self._end(max(sizes, key=lambda process: sizes[process]), "the datasets together took too much memory")
