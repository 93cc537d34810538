"""Calls that may never return: made in a thread of their own, for a bounded time, in which signals arrive."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_unanswered: list[threading.Thread] = []


class NoAnswerError(Exception):
    """A call did not return in time."""


def answer(function: Callable[[], T], seconds: float) -> T:
    """What ``function()`` returns or raises.

    Raises:
        NoAnswerError: it has done neither after ``seconds``. Its thread stays: see :func:`is_waited_for`.
    """
    found: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def call() -> None:
        try:
            found.put((function(), None))
        except BaseException as error:  # it belongs to the thread that waits
            found.put((None, error))

    thread = threading.Thread(target=call, daemon=True, name="request")
    _unanswered.append(thread)
    thread.start()
    try:
        value, error = found.get(timeout=seconds)
    except queue.Empty:
        raise NoAnswerError from None
    _unanswered.remove(thread)
    if error is not None:
        raise error
    result: T = value
    return result


def is_waited_for() -> bool:
    """Whether a call is still unanswered: the usual way out of the process would wait for it."""
    return any(thread.is_alive() for thread in _unanswered)
