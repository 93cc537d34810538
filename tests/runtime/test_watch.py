"""What is noticed of processes that end, with plain processes in Ray's place."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Iterator

import pytest

from packer_service.runtime.watch import RayLostError, Service, Watch, children_watched, watched


def test_the_end_of_a_child_is_told() -> None:
    """Fails when a start that waits for a process that was killed waits for ever."""
    told: list[str] = []
    heard = threading.Event()
    with (
        subprocess.Popen(["sleep", "60"]) as child,
        children_watched(["sleep"], lambda name: (told.append(name), heard.set()), patience=0.1, every_seconds=0.05),
    ):
        time.sleep(0.5)
        child.kill()
        assert heard.wait(timeout=30)
    assert told == ["sleep"]


def test_a_block_that_ends_by_itself_is_left_alone() -> None:
    """Fails when a start that found out by itself is ended, or when another program's end is taken for Ray's."""
    told: list[str] = []
    with subprocess.Popen(["sleep", "60"]) as child:
        with children_watched(["sleep"], told.append, patience=30, every_seconds=0.05):
            time.sleep(0.5)
            child.kill()
        with children_watched(["sleep"], told.append, patience=0, every_seconds=0.05):
            subprocess.run(["true"], check=True)
            time.sleep(0.3)
    assert told == []


def test_results_end_when_a_service_does_not_answer() -> None:
    """Fails when a job waits for results that nobody will send."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        watch = Watch({"it": Service(address=server.getsockname(), patience=0.2)})
        never = threading.Event()

        def results() -> Iterator[int]:
            yield 1
            never.wait(60)

        taken = watched(results, watch, every_seconds=0.05)
        assert next(taken) == 1
        assert watch.lost() is None
        server.close()
        with pytest.raises(RayLostError, match="it does not answer"):
            next(taken)
        never.set()


def test_an_error_of_the_results_is_raised_while_the_service_answers() -> None:
    """Fails when a task's own error is taken for the loss of Ray."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        watch = Watch({"it": Service(address=server.getsockname(), patience=0.2)})

        def results() -> Iterator[int]:
            raise ValueError("mine")
            yield 1

        with pytest.raises(ValueError, match="mine"):
            list(watched(results, watch))
