"""Cache of what was read and computed, kept while there is room; what many ask for at once is made once."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from cachetools import LRUCache
from pydantic import BaseModel

T = TypeVar("T")


class _Kept(NamedTuple):
    value: Any
    size: int


class Cache:
    """Values by key in an ``LRUCache`` that counts bytes. Safe for threads; each value is made by one of them.

    A value larger than the whole limit is given to those who wait for it and not kept. A failure is not kept either.

    Args:
        limit: bytes of all values together.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.hits = 0
        self.misses = 0
        self._values: LRUCache[Hashable, _Kept] = LRUCache(limit, getsizeof=lambda kept: kept.size)
        self._making: dict[Hashable, Future[Any]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._values)

    @property
    def bytes(self) -> int:
        """Bytes of all values that are kept."""
        return int(self._values.currsize)

    def peek(self, key: Hashable) -> Any:
        """The value if it is there, else None."""
        with self._lock:
            kept = self._values.get(key)
            if kept is None:
                return None
            self.hits += 1
            return kept.value

    def put(self, key: Hashable, value: Any, size: int) -> None:
        """Keeps a value of so many bytes in place of the one that the key had."""
        with self._lock:
            self._values.pop(key, None)
            if size <= self.limit:
                self._values[key] = _Kept(value, size)

    def resize(self, limit: int) -> None:
        """Changes the limit; what is above the new one goes, the least recently used first."""
        with self._lock:
            self.limit = limit
            smaller: LRUCache[Hashable, _Kept] = LRUCache(limit, getsizeof=lambda kept: kept.size)
            while self._values:
                key, kept = self._values.popitem()  # the least recently used comes first
                if kept.size <= limit:
                    smaller[key] = kept
            self._values = smaller

    def get(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """The value of a key, made now if it is not there; ``size`` returns its bytes.

        Raises:
            Exception: what ``make`` raised, also to those who waited for it.
        """
        with self._lock:
            if key in self._values:
                self.hits += 1
                found: T = self._values[key].value
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
            self.put(key, value, size(value))
        except BaseException as error:
            mine.set_exception(error)
            raise
        else:
            mine.set_result(value)
            return value
        finally:
            with self._lock:
                del self._making[key]


def size_of(value: Any) -> int:
    """Bytes of a value and everything in it: arrays, records and containers of them. Shared parts count each time."""
    if isinstance(value, np.ndarray):
        return value.nbytes
    return sys.getsizeof(value) + sum(map(size_of, _parts_of(value)))


def _parts_of(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return (*value, *value.values())
    if isinstance(value, list | tuple | set | frozenset):
        return value
    if isinstance(value, BaseModel):
        return value.__dict__.values()
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value)]
    return ()
