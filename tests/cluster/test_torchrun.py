"""``torchrun`` with two agents, as on two machines: the same training as with one, and the loss of one of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from free_ports import free_ports
from lessons import given as given_for
from lessons import make_texts
from process_trees import kill_tree

STEPS = 6
Agent = Callable[..., Any]


def figures(metrics: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()] if metrics.exists() else []


@pytest.fixture(scope="session")
def agent(made_once: Any) -> Agent:
    """``agent("--nnodes=2", ..., metrics=FILE)``: an agent of torchrun training on short texts, as a context."""
    texts = made_once("texts", make_texts) / "dataset"

    @contextmanager
    def start(*launch: str, metrics: Path, **more: str) -> Iterator[subprocess.Popen[bytes]]:
        given = [*given_for(texts), f"--steps={STEPS}", "--ring=2", "--layout=zigzag", "--dtype=float64"]
        given += [f"--metrics={metrics}", *(f"--{name}={value}" for name, value in more.items())]
        given += ["--save-every=1", "--resume"] if "checkpoint" in more else []
        command = [sys.executable, "-m", "torch.distributed.run", *launch, "-m", "preshard.train", *given]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
        with metrics.with_name("said").open("ab") as said:
            process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
        try:
            yield process
        finally:
            kill_tree(process)

    return start


def launch_of_two() -> list[list[str]]:
    """Arguments of the two agents of a job; the first holds the rendezvous, as pod 0 does."""
    [port] = free_ports(1)
    where = ["--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id=job-{port}"]
    given = ["--nnodes=2", "--nproc-per-node=1", "--local-addr=127.0.0.1", *where]
    return [[*given, f"--rdzv-conf=is_host={holds}"] for holds in ("true", "false")]


@pytest.fixture(scope="session")
def expected(agent: Agent, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Reports of one agent with two processes."""
    metrics = tmp_path_factory.mktemp("whole") / "metrics.jsonl"
    with agent("--standalone", "--nproc-per-node=2", metrics=metrics) as alone:
        assert alone.wait(timeout=200) == 0, metrics.with_name("said").read_text()
    return figures(metrics)


def wait_for_steps(metrics: Path, agents: list[subprocess.Popen[bytes]]) -> None:
    """Waits until the job has reported two steps, or an agent has ended."""
    while len(figures(metrics)) < 2 and all(one.poll() is None for one in agents):
        time.sleep(0.05)


def assert_same_training(ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> None:
    assert [(step["step"], step["packs"]) for step in ours] == [(step["step"], step["packs"]) for step in theirs]
    assert [step["loss"] for step in ours] == pytest.approx([step["loss"] for step in theirs], rel=1e-9)
    assert len(ours) == STEPS


@pytest.mark.cluster
@pytest.mark.timeout(900)
@pytest.mark.parametrize("lost", [1, 0], ids=["the other", "the first"])
def test_when_one_of_two_agents_is_lost_the_other_ends_and_both_go_on_later(
    agent: Agent, expected: list[dict[str, Any]], tmp_path: Path, lost: int
) -> None:
    """Fails when two machines train otherwise than one, when the loss of one leaves the other waiting, or when what
    was saved before it does not go on to the same losses.
    """
    metrics, kept = tmp_path / "metrics.jsonl", str(tmp_path / "kept")
    with ExitStack() as stack:
        both = [stack.enter_context(agent(*one, metrics=metrics, checkpoint=kept)) for one in launch_of_two()]
        wait_for_steps(metrics, both)
        kill_tree(both[lost])
        since = time.monotonic()
        assert both[1 - lost].wait(timeout=200) != 0
        assert time.monotonic() - since < 60
    assert 2 <= len(figures(metrics)) < STEPS, "the agent was not lost in the middle"
    with ExitStack() as stack:
        both = [stack.enter_context(agent(*one, metrics=metrics, checkpoint=kept)) for one in launch_of_two()]
        assert [one.wait(timeout=200) for one in both] == [0, 0], (tmp_path / "said").read_text()
    assert_same_training(figures(metrics), expected)


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_pods_that_are_started_again_find_each_other(
    agent: Agent, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    """Fails when agents that are started again after every failure, as the kubelet starts containers of a Job, do not
    come together and finish; the loss here is followed by a new agent at once, while the other still runs.
    """
    metrics, kept = tmp_path / "metrics.jsonl", str(tmp_path / "kept")
    with ExitStack() as stack:
        launch = launch_of_two()

        def start(number: int) -> subprocess.Popen[bytes]:
            process: subprocess.Popen[bytes] = stack.enter_context(
                agent(*launch[number], metrics=metrics, checkpoint=kept)
            )
            return process

        both = [start(0), start(1)]
        wait_for_steps(metrics, both)
        assert len(figures(metrics)) < STEPS, "the agent was not lost in the middle"
        kill_tree(both[1])
        starts, deadline = 0, time.monotonic() + 240
        while any(one.poll() != 0 for one in both) and time.monotonic() < deadline:
            for number, one in enumerate(both):
                if one.poll():
                    both[number] = start(number)
                    starts += 1
            time.sleep(2)
        assert [one.poll() for one in both] == [0, 0], (tmp_path / "said").read_text()
    assert 2 <= starts <= 10
    assert_same_training(figures(metrics), expected)


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_torchrun_starts_a_failed_job_again(agent: Agent, expected: list[dict[str, Any]], tmp_path: Path) -> None:
    """Fails when ranks that torchrun starts again meet those of the attempt before on its store, and wait for them."""
    metrics, kept = tmp_path / "metrics.jsonl", str(tmp_path / "kept")
    with agent("--standalone", "--nproc-per-node=2", "--max-restarts=2", metrics=metrics, checkpoint=kept) as one:
        wait_for_steps(metrics, [one])
        ranks = sorted(child.pid for child in psutil.Process(one.pid).children())
        assert len(figures(metrics)) < STEPS, "the rank was not lost in the middle"
        os.kill(ranks[-1], signal.SIGKILL)
        assert one.wait(timeout=300) == 0, (tmp_path / "said").read_text()
    assert "continuing after step" in (tmp_path / "said").read_text()
    assert_same_training(figures(metrics), expected)
