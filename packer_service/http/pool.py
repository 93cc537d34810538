"""The processes that read: one for each dataset in use, within limits of their number, memory and time.

What has ended the process that read it waits before it is read again, each time twice as long.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from cachetools import TTLCache

from preshard.packer_service.http.problems import ProblemError, busy, too_slow
from preshard.packer_service.runtime.forks import EndedError, Fork, Template

PROCESSES, THREADS = 8, 8
"""Processes that read at once, and questions that each answers at once; the others wait their turn."""

PROCESS_MEMORY, ALL_MEMORY = 2 << 30, 5 << 29
"""Most memory of one process, and of all of them together, those that look at folders included. They may take more for
as long as nobody looks at them: with that, and the process that listens, 3 GiB."""

LOOK_SECONDS = 0.25
"""Time between two looks at the processes."""

BEHIND_SECONDS = 1.0
"""Time without an answer after which a process usually stands behind all others for a processor."""

ROOM_SECONDS = 2.0
"""Time without an answer after which a process may be ended because another dataset needs its place."""

IDLE_SECONDS = 300.0
"""Time after which a process that nobody asks is ended, and its memory given back."""

LEAST_SHARE, MOST_SHARE = 0.02, 0.5
"""Part of the time that a process had for an answer in which it worked. Between them it was the machine that was busy;
below it has slept, and above it has worked, and is itself to blame."""

MOST_WAITING = 256
"""Threads that wait for answers: those of all processes, and of the looks at folders."""

TEMPLATE = Template("preshard.packer_service.http.worker:preload")
"""The program's only one, whatever number of applications it has."""


class WorkerError(Exception):
    """Failure to answer in a way that nobody foresaw; the text is the trace."""


class Reply(NamedTuple):
    """Answer of a process: see :mod:`preshard.packer_service.http.worker`."""

    head: dict[str, Any]
    body: bytes


class Reader:
    """A process with what is known of its use."""

    def __init__(self, key: Hashable, urgent_seconds: float = BEHIND_SECONDS) -> None:
        self.key = key
        self.urgent_seconds = urgent_seconds
        self.fork: Fork = TEMPLATE.fork(PROCESS_MEMORY)
        self.turns = asyncio.Semaphore(THREADS)
        self.users = self.asked = 0
        self.used = self.answered = time.monotonic()
        self.is_low_priority = False
        self.reason = "the process that read it ended"
        self.cache = [0, 0, 0, 0]

    def end(self, reason: str) -> None:
        """Kills it; who waits for an answer is told the reason."""
        if not self.fork.is_over:
            self.reason = reason
            self.fork.kill()


class Pool:
    """Asks processes, starting and ending them as needed. Belongs to one event loop."""

    def __init__(self) -> None:
        self.cooling = Cooling()
        self.others: set[Fork] = set()
        """Processes that are not readers, and whose memory counts with theirs."""
        self._readers: dict[Hashable, Reader] = {}
        self._gone = [0, 0]
        self._changed = asyncio.Event()
        self._threads = ThreadPoolExecutor(MOST_WAITING, thread_name_prefix="asks")
        self._watching: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to import what the processes need, and to watch those that there are."""
        TEMPLATE.start()
        self._watching = asyncio.ensure_future(self._watch())

    def close(self) -> None:
        """Ends every process, at once."""
        if self._watching is not None:
            self._watching.cancel()
        for reader in list(self._readers.values()):
            self._end(reader, "the service ends")
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def ask(
        self,
        key: Hashable,
        name: str,
        function: Callable[..., bytes],
        *args: Any,
        seconds: float,
        keep: bool = True,
        urgent_seconds: float = BEHIND_SECONDS,
    ) -> Reply:
        """The answer of the process that belongs to a key.

        Args:
            key: what the process is for. Another key is another process, which this one cannot slow.
            name: how problems name it.
            function: what is called there; its answer is a line of JSON and a body.
            args: what it is given.
            seconds: longest time for the answer, which is also the longest wait for the process.
            keep: whether more questions of this key will come. If not, the process ends with the question, also where
                that is cancelled.
            urgent_seconds: time without an answer after which the process stands behind all others for a processor.

        Raises:
            ProblemError: 503 the key is not read at the moment, or its process ended; 504 the answer took too long.
        """
        self.cooling.require(key, name)
        reader = None
        try:
            async with asyncio.timeout(seconds):
                reader = await self._enter(key, urgent_seconds)
                await self.run(reader.fork.wait)
            async with reader.turns:
                reply = await self._answer_of(reader, function, args, seconds)
        except TimeoutError:
            raise busy(f"{name}: the service works on other datasets; try again later.", 5) from None
        except EndedError:
            assert reader is not None
            if self._readers.get(key) is reader:  # else it was ended here
                self._end(reader, reader.reason)
                if reader.fork.pid is not None:  # one that has not even started has read nothing
                    self.cooling.fail(key, reader.reason)
            raise busy(f"{name}: {reader.reason}; try again later.", 5) from None
        finally:
            if reader is not None:
                self._leave(reader, keep=keep)
        return reply

    async def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Runs in a thread a function that waits for a process, and returns its result."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, function, *args)

    async def _answer_of(self, reader: Reader, function: Callable[..., bytes], args: Any, seconds: float) -> Reply:
        if not reader.asked:
            reader.answered = time.monotonic()
        reader.asked += 1
        used = reader.fork.processor_seconds()
        try:
            async with asyncio.timeout(seconds):
                answer = await self.run(reader.fork.call, function, *args)
        except TimeoutError:
            share = (reader.fork.processor_seconds() - used) / seconds
            reason = f"an answer took longer than {seconds:g} seconds"
            self._end(reader, reason)
            if not LEAST_SHARE < share < MOST_SHARE:
                self.cooling.fail(reader.key, reason)
            raise too_slow(seconds) from None
        finally:
            reader.asked -= 1
            reader.answered = time.monotonic()
        reply = parse_reply(answer)
        if reply is None:
            self._end(reader, "it gave an invalid answer")
            raise EndedError
        reader.cache = reply.head.get("cache", reader.cache)
        return reply

    async def _enter(self, key: Hashable, urgent_seconds: float) -> Reader:
        """The process of a key, which counts one more user; started if it is not there."""
        while (reader := self._readers.get(key)) is None or reader.fork.is_over:
            if reader is not None:
                self._end(reader, "it ended")
            if len(self._readers) < PROCESSES or self._make_room():
                reader = self._readers[key] = Reader(key, urgent_seconds)
                break
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._changed.wait()
        reader.users += 1
        reader.used = time.monotonic()
        return reader

    def _leave(self, reader: Reader, *, keep: bool) -> None:
        reader.users -= 1
        reader.used = time.monotonic()
        if not keep:
            self._end(reader, "its question is answered")
        self._changed.set()

    def _make_room(self) -> bool:
        """Ends the process that is idle for longest or, if none is, that works without an answer for longest."""
        now = time.monotonic()
        idle = [reader for reader in self._readers.values() if not reader.users]
        if idle:
            self._end(min(idle, key=lambda reader: reader.used), "another dataset needed its place")
            return True
        stalled = [each for each in self._readers.values() if each.asked and now - each.answered > ROOM_SECONDS]
        if stalled:
            slowest = min(stalled, key=lambda reader: reader.answered)
            reason = f"it gave no answer for {now - slowest.answered:.0f} seconds, and another dataset needed its place"
            self.cooling.fail(slowest.key, reason)
            self._end(slowest, reason)
        return bool(stalled)

    def _end(self, reader: Reader, reason: str) -> None:
        reader.end(reason)
        if self._readers.get(reader.key) is reader:
            del self._readers[reader.key]
            self._gone = [self._gone[0] + reader.cache[2], self._gone[1] + reader.cache[3]]
        self._changed.set()

    @property
    def n_readers(self) -> int:
        return len(self._readers)

    def cache_figures(self) -> tuple[int, int, int, int]:
        """Bytes, entries, hits and misses of all processes, those that have ended included in the last two."""
        caches = [reader.cache for reader in self._readers.values()]
        sums = [sum(column) for column in zip([0, 0, *self._gone], *caches, strict=True)]
        return sums[0], sums[1], sums[2], sums[3]

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._look(time.monotonic())

    def _look(self, now: float) -> None:
        for reader in list(self._readers.values()):
            if reader.asked and now - reader.answered > reader.urgent_seconds and not reader.is_low_priority:
                reader.is_low_priority = True
                reader.fork.lower_priority()
            elif not reader.users and now - reader.used > IDLE_SECONDS:
                self._end(reader, "nobody asked it")
        self.others = {fork for fork in self.others if not fork.is_over}
        others = {fork: fork.own_bytes() for fork in self.others}
        sizes = {reader: reader.fork.own_bytes() for reader in self._readers.values()}
        if sum(sizes.values()) + sum(others.values()) <= ALL_MEMORY:
            return
        if others and max(others.values()) > max(sizes.values(), default=0):
            max(others, key=lambda fork: others[fork]).kill()
        else:
            self._end(max(sizes, key=lambda reader: sizes[reader]), "the datasets together took too much memory")


def parse_reply(answer: bytes) -> Reply | None:
    """An answer's line of JSON and its body; None where it has no such line."""
    line, _, body = answer.partition(b"\n")
    with suppress(ValueError, RecursionError):
        head = json.loads(line)
        if isinstance(head, dict):
            return Reply(head, body)
    return None


def require_answer(reply: Reply) -> Reply:
    """The reply itself, unless it says what was wrong.

    Raises:
        ProblemError: the question cannot be answered.
        WorkerError: answering failed.
    """
    if "problem" in reply.head:
        raise ProblemError(**reply.head["problem"])
    if "error" in reply.head:
        raise WorkerError(str(reply.head["error"]))
    return reply


FIRST_SECONDS = 5.0
"""Wait after the first time: one question that took too long should not cost its dataset more."""

MOST_SECONDS = 600.0
"""Longest wait: so a hopeless dataset costs thirty seconds of one processor in ten minutes."""

MOST_KEYS = 10_000
"""Things that are remembered; clients can name more questions than that."""

FORGET_SECONDS = 3600.0
"""Time after which the last failure is forgotten."""


@dataclass(frozen=True, slots=True)
class _Failed:
    times: int
    until: float
    reason: str


class Cooling:
    """Datasets that are not read at the moment. A dataset that changes is another key."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failed: TTLCache[Hashable, _Failed] = TTLCache(MOST_KEYS, FORGET_SECONDS, timer=clock)

    def fail(self, key: Hashable, reason: str) -> None:
        """Notes that a process was lost to it."""
        before = self._failed.get(key)
        times = before.times + 1 if before else 1
        seconds = min(FIRST_SECONDS * 2 ** (times - 1), MOST_SECONDS)
        self._failed[key] = _Failed(times, self._clock() + seconds, reason)

    def reason(self, key: Hashable) -> str | None:
        """The reason why it is not read at the moment; None where it is."""
        failed = self._failed.get(key)
        if failed is None or self._clock() >= failed.until:
            return None
        times = "once" if failed.times == 1 else f"{failed.times} times"
        return f"{failed.reason} ({times}); it is read again in {failed.until - self._clock():.0f} seconds"

    def require(self, key: Hashable, name: str) -> None:
        """Raises ProblemError, a 503 with the time to wait, where it is not read at the moment."""
        reason = self.reason(key)
        if reason is not None:
            raise busy(f"{name}: {reason}.", self._failed[key].until - self._clock())
