"""The page's command at one head: a node that joined it is lost in the middle of a job, and at last the head."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from page import PackOn
from process_trees import kill_tree
from ray_nodes import Machine, Node, ray_node, shards

from packer_service.config import load_config
from packer_service.job.pack import pack
from packer_service.runtime.executors import PlainExecutor

LOOK_SECONDS = 0.05
"""Between two looks at what a job has written; a task takes several times as long."""


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Machine:
    return Machine.make(tmp_path_factory.mktemp("machine") / "machine")


@pytest.fixture(scope="module")
def head(machine: Machine) -> Iterator[Node]:
    """A head for both jobs of this file. It has one CPU, which shall not wait for itself."""
    with ray_node(machine, num_cpus=1, bare=True) as head:
        yield head


@pytest.fixture(scope="module")
def installed(machine: Machine, wheel: Path) -> None:
    machine.install(wheel)


@pytest.mark.usefixtures("installed")
def test_a_node_that_is_lost_in_the_middle_costs_its_tasks_alone(
    machine: Machine, head: Node, pack_on: PackOn, same_short_bytes: Callable[[Path], bool], tmp_path: Path
) -> None:
    """Fails when the loss of a node ends the job, loses or doubles what ran there, or leaves half of a shard."""
    out = tmp_path / "dataset"
    with (
        ray_node(machine, head, num_cpus=1, ip="127.0.0.2", bare=True) as lost,
        subprocess.Popen(pack_on(machine, head, out), env=machine.environment(), stderr=subprocess.PIPE) as driver,
    ):
        while driver.poll() is None and not (len(shards(out)) > 1 and lost.tasks()):
            time.sleep(LOOK_SECONDS)
        running, written = lost.tasks(), len(shards(out))
        kill_tree(lost.process)
        said = driver.communicate(timeout=300)[1].decode()
    assert driver.returncode == 0, said
    assert running, "no task was lost with the node"
    assert 0 < written < len(shards(out)), "the node was not lost in the middle"
    assert same_short_bytes(out)
    assert "Traceback" not in said


@pytest.mark.usefixtures("installed")
def test_a_job_whose_head_is_lost_says_so_and_goes_on_later(
    machine: Machine,
    head: Node,
    pack_on: PackOn,
    tiny_source: Path,
    short_settings: list[str],
    same_short_bytes: Callable[[Path], bool],
    progress: Any,
    tmp_path: Path,
) -> None:
    """Fails when a driver waits for Ray whose processes have all been killed, does not say how to continue, or leaves
    what the next run takes for whole or packs again. Last: it ends the head.
    """
    out = tmp_path / "dataset"
    with subprocess.Popen(pack_on(machine, head, out), env=machine.environment(), stderr=subprocess.PIPE) as driver:
        while driver.poll() is None and len(shards(out)) < 3:
            time.sleep(LOOK_SECONDS)
        kill_tree(head.process)
        said = driver.communicate(timeout=300)[1].decode()
    assert driver.returncode == 1, said
    assert "Ray is gone" in said.splitlines()[-1]
    assert "run the same command again" in said.splitlines()[-1]
    assert "Traceback" not in said
    assert not (out / "manifest.json").exists(), "the head was not lost in the middle"
    kept = {path: path.stat().st_mtime_ns for path in shards(out)}
    # what is left is the same for every executor, and another head takes long to start
    pack([str(tiny_source)], str(out), load_config(None, short_settings), PlainExecutor(), progress)
    assert same_short_bytes(out)
    # the one CPU may have had a shard under its name and not yet on record
    assert sum(path.stat().st_mtime_ns != written for path, written in kept.items()) <= 1 < len(kept)
