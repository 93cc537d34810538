"""What a process keeps of what it read or made last, up to a limit of memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cachetools import LRUCache

K = TypeVar("K")
V = TypeVar("V")


def recent_values(limit: int, weigh: Callable[[V], int]) -> LRUCache[K, V]:
    """A cache that drops its least recently used values while all together weigh more than the limit.

    The newest value is kept whatever it weighs; ``LRUCache`` would refuse it, and it would be made again for each use.
    """
    limit = max(limit, 1)
    return LRUCache(limit, getsizeof=lambda value: min(max(weigh(value), 1), limit))
