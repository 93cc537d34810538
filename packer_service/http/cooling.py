"""What has ended the process that read it waits before it is read again, each time twice as long."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from cachetools import TTLCache

from preshard.packer_service.http.problems import busy

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
    """Which datasets are not read at the moment. A dataset that changes is another key."""

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
        """Why it is not read at the moment; None where it is."""
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
