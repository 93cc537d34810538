"""Calls in threads of their own. Nobody waits for them when the process ends, as for the threads of a pool."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from functools import partial
from threading import Thread
from typing import TypeVar

S = TypeVar("S")
T = TypeVar("T")


def started(function: Callable[[], T], name: str) -> Future[T]:
    """The result of a call, as soon as it is there.

    The thread is a daemon's: a process that is told to end does not wait for a decoder or a store.

    Args:
        function: what is called.
        name: of the thread.
    """
    future: Future[T] = Future()
    Thread(target=partial(_fulfil, future, function), daemon=True, name=name).start()
    return future


def several(function: Callable[[S], T], items: Iterable[S], most: int, name: str) -> Iterator[T]:
    """What a function gives for items, in their order, of which so many are worked on at the same time."""
    running = deque[Future[T]]()
    for item in items:
        if len(running) == most:
            yield running.popleft().result()
        running.append(started(partial(function, item), name))
    while running:
        yield running.popleft().result()


def _fulfil(future: Future[T], function: Callable[[], T]) -> None:
    try:
        future.set_result(function())
    except BaseException as error:  # the thread that waits raises it
        future.set_exception(error)
