"""What is noticed of services that end, with plain sockets and processes in Ray's place."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from packer_service.runtime.probe import RayLostError, Service, until_lost

LISTENER = """
import socket, time
with socket.create_server(("127.0.0.1", 0)) as server:
    print(server.getsockname()[1], flush=True)
    time.sleep(60)
"""


def service(server: socket.socket, patience: float = 0.0) -> Service:
    return Service(name="it", address=server.getsockname(), patience=patience)


def one_and_no_more() -> Iterator[int]:
    """As a pipeline whose Ray is gone."""
    yield 1
    threading.Event().wait(60)


def test_the_end_of_a_process_ends_the_wait_before_the_next_regular_probe() -> None:
    """Fails when a job waits for results that nobody will send, or notices after Ray's own library would have."""
    with subprocess.Popen([sys.executable, "-c", LISTENER], stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout is not None
        address = ("127.0.0.1", int(listener.stdout.readline()))
        results = until_lost(one_and_no_more, [Service(name="it", address=address, patience=0.0)])
        assert next(results) == 1
        time.sleep(0.2)  # the probe holds its connection now
        listener.kill()
        killed = time.monotonic()
        with pytest.raises(RayLostError, match=r"Ray is gone \(it does not answer\); what was done is kept"):
            next(results)
        assert time.monotonic() - killed < 0.5


def test_a_service_that_is_back_in_time_is_not_lost() -> None:
    """Fails when a head that restarts within its patience ends the job."""
    server = socket.create_server(("127.0.0.1", 0))
    again = threading.Event()

    def results() -> Iterator[int]:
        yield 1
        again.wait(60)
        time.sleep(1)  # longer than the patience: a service that stayed away would have been missed
        yield 2

    taken = until_lost(results, [service(server, patience=0.8)])
    assert next(taken) == 1
    address = server.getsockname()
    server.close()
    time.sleep(0.3)
    with socket.create_server(address):
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
