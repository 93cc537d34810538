"""Datasets are read by processes that may hang, crash or be ended, and the service ends with all of them."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest

from preshard.packer_service.http.pool import FIRST_SECONDS, FORGET_SECONDS, MOST_SECONDS, Cooling
from preshard.packer_service.http.problems import ProblemError
from preshard.packer_service.runtime.forks import Template
from tests.support.hostile_datasets import write_hostile
from tests.support.served import descendants, is_running, memory_bytes, processor_seconds, served

KINDS = (
    "window-of-a-trillion", "manifest-endless", "manifest-a-pipe", "shards-a-circle", "folders-deep", "name-no-text",
    "samples-of-noise", "parquet-footer-of-gigabytes", "loads-wild", "bomb-of-documents",
    "sample-inflates-to-gigabytes", "figures-deep", "manifest-many-keys",
)  # fmt: skip
"""One of each sort; `tests/benchmarks/hostile_service.py` has them all."""

ASKED = ("", "/balance?ring=2", "/packs?sort=-attention", "/packs/0/layout", "/shards/preshard-000000.tar/balance")
"""Addresses that are asked for each of them."""

SOUND = {"tiny", "other", "stopped"}
REQUEST_SECONDS = 12.0
LONG = 120.0
"""Seconds until a test gives up: far more than a busy machine takes, where the fault would take for ever."""

ANSWERED = {200, 404, 409, 503, 504}


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    body: bytes


class Front:
    """A running service."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        self.process, self.port = process, port

    def get(self, path: str, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONG)
        with contextlib.closing(connection):
            connection.request("GET", path, headers={name.replace("_", "-"): value for name, value in headers.items()})
            answer = connection.getresponse()
            return Answer(answer.status, answer.headers, answer.read())

    def json(self, path: str) -> Any:
        return json.loads(self.get(path).body)

    def readers(self) -> list[int]:
        """The processes that read, without the one that they are forked from."""
        return descendants(self.process.pid)[2:]


def names_listed(front: Front) -> set[str]:
    return {entry["name"] for entry in front.json("/v1/datasets?limit=1000").get("items", ())}


def ends(pids: list[int], seconds: float) -> bool:
    """Whether processes end within so long."""
    deadline = time.monotonic() + seconds
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not any(map(is_running, pids))


def stop_reader(front: Front, name: str, question: str) -> int:
    """Asks about a dataset that has no process, and stops the one that answers."""
    front.get("/v1/datasets")  # starts the one that looks through the root
    before = set(front.readers())
    assert front.get(f"/v1/datasets/{name}{question}").status == 200
    [reader] = set(front.readers()) - before
    os.kill(reader, signal.SIGSTOP)
    return reader


@pytest.fixture(scope="module")
def hostile_root(tmp_path_factory: pytest.TempPathFactory, tiny_dataset: Path) -> Path:
    """Sound datasets, ``tiny``, ``other`` and ``stopped``, among many that are not."""
    root = tmp_path_factory.mktemp("hostile")
    for name in SOUND:
        shutil.copytree(tiny_dataset, root / name)
    write_hostile(root, tiny_dataset, rows=1_000_000, wanted=KINDS)
    return root


@pytest.fixture(scope="module")
def front(hostile_root: Path) -> Iterator[Front]:
    limits = {"request_seconds": REQUEST_SECONDS, "plan_seconds": LONG}
    with served(hostile_root, **limits) as (process, port):
        front, deadline = Front(process, port), time.monotonic() + LONG
        # on a busy machine the process that readers are forked from may take longer to start than a request may
        while not (front.get("/v1/datasets/tiny").status == 200 and names_listed(front) >= SOUND):
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield front


def ask_plan(front: Front, asked: dict[str, Any]) -> http.client.HTTPConnection:
    """Asks for a plan, and does not wait for it."""
    connection = http.client.HTTPConnection("127.0.0.1", front.port, timeout=LONG)
    connection.request("POST", "/v1/plan", json.dumps(asked), {"Content-Type": "application/json"})
    return connection


def test_a_plan_ends_with_its_client(served_root: Path) -> None:
    """Fails when a plan goes on that nobody waits for, or the next client is refused because of it."""
    with served(served_root, plan_seconds=LONG) as (process, port):
        front, deadline, planning = Front(process, port), time.monotonic() + LONG, set[int]()
        while front.get("/v1/datasets/tiny").status != 200:  # everything that the plan does not start has started
            assert time.monotonic() < deadline
        before = set(front.readers())
        with contextlib.closing(ask_plan(front, {"lengths": {"tokens": [7] * 300_000}})):
            while not sum(map(processor_seconds, planning)) > 0.1 and time.monotonic() < deadline:
                planning = set(front.readers()) - before
            [planner] = planning
            os.kill(planner, signal.SIGSTOP)  # longer than any test would wait
            assert is_running(planner)
        with contextlib.closing(ask_plan(front, {"lengths": {"tokens": [7]}})) as next_client:
            assert next_client.getresponse().status == 200
        assert ends([planner], LONG)


def test_a_dataset_that_hangs_is_given_up_and_hangs_nothing_else(front: Front) -> None:
    """Fails when work goes on after a 504, the next client waits as long again, or another dataset waits with it.

    A process that is stopped stands for one that waits for a filesystem which does not answer.
    """
    front.get("/v1/datasets/tiny")
    reader = stop_reader(front, "stopped", "/packs")
    with contextlib.closing(socket.create_connection(("127.0.0.1", front.port))) as waiting:
        waiting.sendall(b"GET /v1/datasets/stopped/packs?offset=1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        began = time.monotonic()
        while time.monotonic() - began < 1:
            assert front.get("/v1/datasets/tiny/documents?limit=7").status == 200
        assert b" 504 " in waiting.recv(100)
    refused = front.get("/v1/datasets/stopped/packs?offset=2")  # at once: it is refused for some seconds
    assert (refused.status, "once" in refused.body.decode()) == (503, True)
    assert 0 < int(refused.headers["retry-after"]) <= 5
    assert ends([reader], LONG)
    assert front.get("/v1/datasets/tiny").status == 200


def test_hostile_datasets_hold_up_no_sound_one(front: Front, hostile_root: Path) -> None:
    """Fails when a dataset crashes the service, is answered by an internal error, or leaves work or memory behind."""
    wanted, states = {"tiny", "other", "window-of-a-trillion", "bomb-of-documents"}, dict[str, str]()
    deadline = time.monotonic() + LONG
    while not wanted <= set(states) and time.monotonic() < deadline:  # the root is too deep to be searched as a whole
        listed = front.json("/v1/datasets?limit=1000")
        states = {entry["name"]: entry["state"] for entry in listed["items"]}
    assert wanted <= set(states)
    assert not listed["complete"]
    assert (states["tiny"], states["window-of-a-trillion"]) == ("whole", "damaged")
    refused = front.get("/v1/plan/keys?dataset=window-of-a-trillion")  # said as the dataset's own paths say it
    assert (refused.status, json.loads(refused.body)["title"]) == (409, "Dataset damaged")
    asked: dict[str, dict[str, int]] = {}
    for name in states:
        if name in KINDS:
            asked[name] = {at: front.get(f"/v1/datasets/{quote(name)}{at}").status for at in ASKED}
            assert front.get("/v1/datasets/tiny/packs").status == 200
    assert {status for statuses in asked.values() for status in statuses.values()} <= ANSWERED, asked
    assert asked["parquet-footer-of-gigabytes"]["/packs?sort=-attention"] == 409
    beside = [
        (front.get("/v1/datasets/manifest-many-keys").status, front.get("/v1/datasets/tiny").status) for _ in range(25)
    ]
    assert set(beside) == {(409, 200)}  # a look at a million keys that are decoded takes longer than it may
    assert memory_bytes(descendants(front.process.pid)) < 2 << 30
    deadline = time.monotonic() + LONG
    while (used := used_in_a_second(front)) >= 0.3 and time.monotonic() < deadline:  # what was asked may be ending
        pass
    assert used < 0.3


def used_in_a_second(front: Front) -> float:
    """Processor time that the service and all that it started take now."""
    before = {pid: processor_seconds(pid) for pid in descendants(front.process.pid)}
    time.sleep(1)
    return sum(processor_seconds(pid) - used for pid, used in before.items())


def test_nothing_outlives_the_service(front: Front) -> None:
    """Fails when SIGTERM is not heard while a dataset hangs, or a reader stays. Last: it ends the service."""
    hung = stop_reader(front, "other", "/rejects?limit=2")
    with contextlib.closing(socket.create_connection(("127.0.0.1", front.port))) as waiting:
        waiting.sendall(b"GET /v1/datasets/other/packs?offset=1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        time.sleep(0.3)
        processes = descendants(front.process.pid)
        assert hung in processes
        told = b""
        front.process.send_signal(signal.SIGTERM)
        front.process.wait(timeout=LONG)
        waiting.settimeout(LONG)
        with contextlib.suppress(ConnectionResetError):
            told = waiting.recv(1000)
    assert b" 504 " not in told, "it ended with the hung request, which took all of its time"
    assert ends(processes, LONG)


def test_readers_end_with_what_they_were_forked_from() -> None:
    """Fails when a service that is killed leaves processes behind that nobody can reach, or one may lift its bounds."""
    template = Template("preshard.packer_service.http.worker:preload")
    fork = template.fork(1 << 30)
    fork.wait()
    assert fork.pid is not None
    memory, hard = resource.prlimit(fork.pid, resource.RLIMIT_DATA)
    assert 1 << 30 < memory == hard < 2 << 30
    os.kill(fork.pid, signal.SIGSTOP)  # it notices nothing by itself
    assert is_running(fork.pid)
    template.close()
    assert ends([fork.pid], LONG)


def test_the_wait_doubles_up_to_a_bound_and_is_the_keys_own() -> None:
    """Fails when a hopeless dataset is read over and over, a wait never ends, or another dataset waits with it."""
    now = 0.0
    cooling = Cooling(lambda: now)
    for times in range(12):
        cooling.fail("one", "it hung")
        wait = min(FIRST_SECONDS * 2**times, MOST_SECONDS)
        now += wait - 0.5
        with pytest.raises(ProblemError) as refused:
            cooling.require("one", "NAME")
        assert (refused.value.status, refused.value.headers["Retry-After"]) == (503, "1")
        assert "NAME: it hung" in refused.value.detail
        cooling.require("two", "OTHER")
        now += 0.5
        cooling.require("one", "NAME")
    now += FORGET_SECONDS + 1
    cooling.fail("one", "it hung")
    assert "once" in str(cooling.reason("one"))
