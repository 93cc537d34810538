"""Notices that Ray is gone. Ray's own library takes up to a minute for it, and then ends the process in mid-call."""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from packer_service.runtime.executors import TaskError

T = TypeVar("T")


class RayLostError(TaskError):
    """Ray itself is gone; nothing can be asked of it any more, not even to shut down.

    Args:
        how: what was noticed of it.
    """

    leaves_threads = True
    """Ending the process in the usual way would wait for Ray's threads, which wait for Ray."""

    def __init__(self, how: str) -> None:
        super().__init__(f"Ray is gone ({how}); what was done is kept, run the same command again")


@dataclass(frozen=True, kw_only=True, slots=True)
class Service:
    """A process that Ray needs, where it listens, and for how many seconds it may be out of reach."""

    address: tuple[str, int]
    patience: float


class Watch:
    """Asks services whether they still listen."""

    def __init__(self, services: Mapping[str, Service]) -> None:
        self.services = services
        self.last_seen = dict.fromkeys(services, time.monotonic())

    def lost(self, *, patient: bool = True) -> str | None:
        """Name of a service that is out of reach, and has been for as long as it may be if ``patient``."""
        for name, service in self.services.items():
            if _answers(service.address):
                self.last_seen[name] = time.monotonic()
            elif not patient or time.monotonic() - self.last_seen[name] > service.patience:
                return name
        return None


def _answers(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=2).close()
    except OSError:
        return False
    return True


def watched(results: Callable[[], Iterable[T]], watch: Watch, every_seconds: float = 1.0) -> Iterator[T]:
    """What ``results()`` yields, taken in a thread, for as long as no service is lost.

    The caller's thread never waits inside of Ray, so that an interrupt reaches it at once.

    Raises:
        RayLostError: a service is lost.
        Exception: what the iterator raised while none was.
    """
    # bounded, so that a slow caller slows the tasks
    found: queue.Queue[_Found] = queue.Queue(maxsize=64)
    threading.Thread(target=_take, args=(results, found), daemon=True, name="results").start()
    asked = time.monotonic()
    while True:
        try:
            event = found.get(timeout=every_seconds)
        except queue.Empty:
            event = None
        if (event is not None and event.error is not None) or time.monotonic() - asked >= every_seconds:
            asked = time.monotonic()
            lost = watch.lost(patient=event is None or event.error is None)
            if lost is not None:
                raise RayLostError(f"{lost} does not answer")
        if event is None:
            continue
        if event.error is not None:
            raise event.error
        if event.ended:
            return
        yield event.value


@contextmanager
def children_watched(
    names: Sequence[str], lost: Callable[[str], object], patience: float = 5.0, every_seconds: float = 0.5
) -> Iterator[None]:
    """Calls ``lost``, in a thread, when a child of this process ends while the block runs, and the block goes on.

    Args:
        names: of the programs that are watched, as the kernel has them.
        lost: told the name of the child.
        patience: seconds in which the block may notice by itself.
        every_seconds: time between two looks.
    """
    over = threading.Event()

    def look() -> None:
        seen: dict[int, str] = {}
        while not over.wait(every_seconds):
            living = _children(names)
            gone = seen.keys() - living.keys()
            if gone:
                if not over.wait(patience):
                    lost(seen[gone.pop()])
                return
            seen = living

    thread = threading.Thread(target=look, daemon=True, name="children")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def _children(names: Sequence[str]) -> dict[int, str]:
    """Living children of this process, by process id; none where there is no Linux to ask."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            before, _, after = stat.read_text(encoding="utf-8").rpartition(")")
        except OSError:  # it has ended meanwhile
            continue
        name, (state, parent, *_) = before.partition("(")[2], after.split()
        if name in names and int(parent) == os.getpid() and state != "Z":
            found[int(stat.parent.name)] = name
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class _Found:
    """A result, or how the results ended."""

    value: Any = None
    error: BaseException | None = None
    ended: bool = False


def _take(results: Callable[[], Iterable[Any]], found: queue.Queue[_Found]) -> None:
    try:
        for result in results():
            found.put(_Found(value=result))
        found.put(_Found(ended=True))
    except BaseException as error:  # it belongs to the thread that waits
        found.put(_Found(error=error))
