"""Values made once, kept while there is room."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from preshard.packer_service.http.dataset.cache import Cache, size_of
from preshard.packer_service.report.records import RankLoads, Spread

LONG = 60.0
"""Seconds until a test gives up."""


def test_the_least_recently_used_goes_first() -> None:
    """Fails when memory is not bounded, or what was just used is dropped."""
    cache = Cache(100)
    made: list[str] = []

    def get(key: str, size: int = 40) -> str:
        def make() -> str:
            made.append(key)
            return key.upper()

        return cache.get(key, make, lambda _: size)

    assert [get("a"), get("b"), get("a"), get("c")] == ["A", "B", "A", "C"]
    assert (made, cache.bytes, len(cache)) == (["a", "b", "c"], 80, 2)
    get("a")
    get("b")
    assert made == ["a", "b", "c", "b"]
    assert get("huge", 101) == "HUGE"
    assert (len(cache), cache.bytes) == (2, 80)
    cache.put("a", "new", 10)
    assert (cache.peek("a"), cache.peek("nothing"), cache.bytes) == ("new", None, 50)


def wait_for_misses(cache: Cache, number: int) -> None:
    """Waits until so many have asked in vain: each of them waits for the one that makes the value, or is it."""
    until = time.monotonic() + LONG
    while cache.misses < number and time.monotonic() < until:
        time.sleep(0.001)


def test_many_who_ask_at_once_wait_for_one() -> None:
    """Fails when fifty clients make fifty cold reads."""
    cache, calls = Cache(100), 0

    def make() -> str:
        nonlocal calls
        calls += 1
        wait_for_misses(cache, 20)
        return "made"

    def ask(_: int) -> str:
        return cache.get("key", make, lambda _: 1)

    with ThreadPoolExecutor(20) as pool:
        assert set(pool.map(ask, range(20))) == {"made"}
    assert calls == 1


def test_a_failure_reaches_all_who_wait_and_is_tried_again() -> None:
    """Fails when an outage is kept as the answer, or leaves those who wait hanging."""
    cache, calls = Cache(100), 0

    def fail() -> str:
        nonlocal calls
        calls += 1
        wait_for_misses(cache, 5)
        raise OSError("out")

    def ask(_: int) -> str:
        with pytest.raises(OSError, match="out"):
            cache.get("key", fail, lambda _: 1)
        return "refused"

    with ThreadPoolExecutor(5) as pool:
        assert list(pool.map(ask, range(5))) == ["refused"] * 5
    assert calls == 1
    assert cache.get("key", lambda: "well", lambda _: 1) == "well"


def test_sizes_count_what_is_inside() -> None:
    """Fails when a kept record counts as its shell alone, so that memory grows past the limit."""
    loads = RankLoads(rank_mean=[0.5] * 1000, imbalance=Spread(packs=1, mean=1.0, p95=1.0, max=1.0))
    assert 1000 * 24 <= size_of(loads) < 1000 * 24 + 12_000
    assert size_of({"key": [b"x" * 5000, ("y" * 3000,)]}) > 8000
    assert 6 * 1000 * 8 < size_of([np.ones(1000)] * 6) < 6 * 1000 * 8 + 1000


def test_a_smaller_limit_drops_what_was_used_longest_ago() -> None:
    """Fails when a limit that is lowered leaves memory as it was, or drops what was just used."""
    cache = Cache(100)
    for key in "abcd":
        cache.put(key, key, 25)
    cache.peek("a")
    cache.resize(60)
    assert [cache.peek(key) for key in "abcd"] == ["a", None, None, "d"]
    assert (cache.bytes, cache.limit) == (50, 60)
    cache.resize(10)
    assert (cache.bytes, len(cache)) == (0, 0)
