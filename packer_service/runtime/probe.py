"""The probe that notices when Ray is gone. Ray's own library takes up to a minute, and then ends the process."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, TypeVar

from preshard.packer_service.runtime.executors import TaskError

T = TypeVar("T")

PROBE_SECONDS = 1.0
"""Longest time between two probes; one whose connection is closed by the other side follows at once."""
PAUSE_SECONDS = 0.05
"""Pause before the probe that follows at once: a service that closes every connection must not keep a CPU busy."""
CONNECT_SECONDS = 5.0
"""The kernel answers for a busy process, so only a machine that is gone or cut off takes this long."""
QUEUED_RESULTS = 64
"""Results that may wait for the caller: with more of them a slow caller slows the tasks down."""


class RayLostError(TaskError):
    """Ray itself is gone. Nothing can be asked of it any more, not even to shut down: see
    :func:`preshard.packer_service.runtime.interrupt.exit_at_once`.

    Args:
        how: what was noticed.
    """

    def __init__(self, how: str) -> None:
        super().__init__(f"Ray is gone ({how}); finished work is kept, run the same command again")


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """A process of Ray, where it listens, and for how many seconds it may fail to answer."""

    name: str
    address: tuple[str, int]
    patience: float


def until_lost(results: Callable[[], Iterable[T]], services: Sequence[Service]) -> Iterator[T]:
    """Yields what ``results()`` yields, for as long as all ``services`` answer.

    The results are taken in a thread of their own, so the caller's thread never waits inside Ray and an interrupt
    reaches it at once.

    Raises:
        RayLostError: a service does not answer.
        Exception: whatever ``results()`` raised while all services answered.
    """
    # a process that is restarted after a failure may do so now; Ray's library would end this one over any other
    _require([service for service in services if not service.patience])
    found: queue.Queue[Any] = queue.Queue(maxsize=QUEUED_RESULTS)
    threading.Thread(target=_take, args=(results, found), daemon=True, name="results").start()
    with _probing(services, found):
        while not isinstance(each := found.get(), _End):
            yield each
    if each.error is not None:
        _require(services)  # the reason of what Ray raised, if one is gone
        raise each.error


@dataclass(frozen=True, slots=True)
class _End:
    """Comes after the last result: what ended the results early, or None."""

    error: BaseException | None


def _take(results: Callable[[], Iterable[Any]], found: queue.Queue[Any]) -> None:
    try:
        for result in results():
            found.put(result)
        found.put(_End(None))
    except BaseException as error:  # it belongs to the thread that waits
        found.put(_End(error))


@contextmanager
def _probing(services: Sequence[Service], found: queue.Queue[Any]) -> Iterator[None]:
    over = threading.Event()
    threading.Thread(target=_probe, args=(services, found, over), daemon=True, name="probe").start()
    try:
        yield
    finally:
        over.set()


def _probe(services: Sequence[Service], found: queue.Queue[Any], over: threading.Event) -> None:
    """Puts an end into the queue as soon as a service is lost.

    Each connection is held until the next probe: when a process dies the kernel closes it, and the next probe follows
    at once, before Ray's library notices and ends this process.
    """
    last_answer = {service.name: time.monotonic() for service in services}
    while not over.is_set():
        with ExitStack() as stack:
            held = []
            for service in services:
                connection = _connect(service)
                if connection is not None:
                    held.append(stack.enter_context(connection))
                    last_answer[service.name] = time.monotonic()
                elif time.monotonic() - last_answer[service.name] >= service.patience and not over.is_set():
                    found.put(_End(RayLostError(f"{service.name} does not answer")))
                    return
            if wait(held, PROBE_SECONDS):
                over.wait(PAUSE_SECONDS)


def _require(services: Sequence[Service]) -> None:
    """
    Raises:
        RayLostError: a service does not answer now.
    """
    for service in services:
        connection = _connect(service)
        if connection is None:
            raise RayLostError(f"{service.name} does not answer")
        connection.close()


def _connect(service: Service) -> socket.socket | None:
    try:
        return socket.create_connection(service.address, timeout=CONNECT_SECONDS)
    except OSError:
        return None
