"""Detection of services that end, with plain sockets and processes in Ray's place."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from preshard.packer_service.runtime import probe
from preshard.packer_service.runtime.probe import RayLostError, Service, until_lost

LISTENER = """
import socket, sys
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    asked_first, _ = server.accept()
    held, _ = server.accept()
    print("held", flush=True)
    sys.stdin.read()
"""

LONG = 60.0
"""Seconds until a test gives up; none of them waits for a moment."""


class Clock:
    """A clock that a test turns on, and how often it was looked at."""

    def __init__(self) -> None:
        self.now, self._looks, self._looked = 0.0, 0, threading.Condition()

    def monotonic(self) -> float:
        with self._looked:
            self._looks += 1
            self._looked.notify_all()
            return self.now

    def wait_for_looks(self, number: int) -> None:
        with self._looked:
            wanted = self._looks + number
            assert self._looked.wait_for(lambda: self._looks >= wanted, LONG)


def service(server: socket.socket, patience: float = 0.0) -> Service:
    return Service(name="it", address=server.getsockname(), patience=patience)


def one_and_no_more() -> Iterator[int]:
    """Waits as a pipeline whose Ray is gone."""
    yield 1
    threading.Event().wait(10 * LONG)


def test_the_end_of_a_process_ends_the_wait_before_the_next_regular_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a job waits for results that nobody will send, or notices after Ray's own library would have."""
    monkeypatch.setattr(probe, "PROBE_SECONDS", 5 * LONG)
    words = [sys.executable, "-c", LISTENER]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        address = ("127.0.0.1", int(listener.stdout.readline()))
        results = until_lost(one_and_no_more, [Service(name="it", address=address, patience=0.0)])
        assert next(results) == 1
        assert listener.stdout.readline() == "held\n"
        listener.kill()
        killed = time.monotonic()
        with pytest.raises(RayLostError, match=r"Ray is gone \(it does not answer\); finished work is kept"):
            next(results)
        assert time.monotonic() - killed < LONG


def test_a_service_that_is_back_in_time_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a head that restarts within its patience ends the job."""
    clock, again = Clock(), threading.Event()
    monkeypatch.setattr(probe, "time", clock)
    monkeypatch.setattr(probe, "PROBE_SECONDS", 0.05)
    server = socket.create_server(("127.0.0.1", 0))

    def results() -> Iterator[int]:
        yield 1
        again.wait(LONG)
        yield 2

    taken = until_lost(results, [service(server, patience=10.0)])
    assert next(taken) == 1
    address = server.getsockname()
    server.close()
    clock.now = 9.0
    clock.wait_for_looks(3)  # by probes, of which all but the first found nobody
    with socket.create_server(address):
        clock.wait_for_looks(3)
        clock.now = 18.0  # a service that stayed away would be missed now
        clock.wait_for_looks(3)
        again.set()
        assert list(taken) == [2]


def test_a_service_that_stays_away_is_lost_after_its_patience() -> None:
    """Fails when the patience with a head has no end."""
    server = socket.create_server(("127.0.0.1", 0))
    taken = until_lost(one_and_no_more, [service(server, patience=0.5)])
    assert next(taken) == 1
    server.close()
    with pytest.raises(RayLostError):
        next(taken)


def test_nothing_is_asked_of_a_service_that_is_gone_already() -> None:
    """Fails when a phase begins on a Ray that ended during the phase before: Ray's library would end the process."""
    asked = threading.Event()

    def results() -> Iterator[int]:
        asked.set()
        yield 1

    gone = Service(name="it", address=("127.0.0.1", 1), patience=0.0)
    with pytest.raises(RayLostError):
        list(until_lost(results, [gone]))
    assert not asked.is_set()


def broken() -> Iterator[int]:
    raise ValueError("mine")
    yield 1


def test_an_error_of_the_results_is_raised_while_the_services_answer() -> None:
    """Fails when a task's own error is taken for the loss of Ray."""
    with socket.create_server(("127.0.0.1", 0)) as server, pytest.raises(ValueError, match="mine"):
        list(until_lost(broken, [service(server)]))


def test_an_error_that_follows_from_the_loss_is_not_the_reason() -> None:
    """Fails when Ray's words about its end stand where ours should."""
    server = socket.create_server(("127.0.0.1", 0))

    def results() -> Iterator[int]:
        yield 1
        server.close()
        raise ValueError("Ray's words")

    with pytest.raises(RayLostError):
        list(until_lost(results, [service(server, patience=60)]))


def test_all_results_come_by_their_order() -> None:
    """Fails when results are lost behind a caller that is slower than the queue is long."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert list(until_lost(lambda: iter(range(200)), [service(server)])) == list(range(200))
