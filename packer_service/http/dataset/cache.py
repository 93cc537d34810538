"""What was read and worked out, kept while there is room; asked for by many at once, it is made once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class Cache:
    """Values by key, the least recently used dropped first. Safe for threads.

    A value larger than the whole limit is given to those who wait for it and not kept. A failure is not kept either.

    Args:
        limit: bytes of all values together.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._making: dict[Hashable, Future[Any]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    def peek(self, key: Hashable) -> Any:
        """The value if it is there, else None."""
        with self._lock:
            if key not in self._values:
                return None
            self.hits += 1
            self._values.move_to_end(key)
            return self._values[key][0]

    def put(self, key: Hashable, value: Any, size: int) -> None:
        with self._lock:
            self._keep(key, value, size)

    def get(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """The value of a key, made now if it is not there; ``size`` tells its bytes.

        Raises:
            Exception: what ``make`` raised, also to those who waited for it.
        """
        with self._lock:
            if key in self._values:
                self.hits += 1
                self._values.move_to_end(key)
                found: T = self._values[key][0]
                return found
            self.misses += 1
            waiting = self._making.get(key)
            if waiting is None:
                mine = self._making[key] = Future()
        if waiting is not None:
            awaited: T = waiting.result()
            return awaited
        try:
            value = make()
            with self._lock:
                self._keep(key, value, size(value))
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(value)
            return value
        finally:
            with self._lock:
                del self._making[key]

    def _keep(self, key: Hashable, value: Any, size: int) -> None:
        if key in self._values:
            self.bytes -= self._values.pop(key)[1]
        if size > self.limit:
            return
        self._values[key] = (value, size)
        self.bytes += size
        while self.bytes > self.limit:
            self.bytes -= self._values.popitem(last=False)[1][1]
