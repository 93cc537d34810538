"""Packing over two Ray nodes of which one is lost in the middle."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from page import command
from process_trees import kill_tree
from ray_nodes import Machine, Node, ray_node

PackOn = Callable[[Node, Path], list[str]]


@pytest.fixture
def pack_on(machine: Machine, tiny_source: Path, short_options: list[str]) -> PackOn:
    """``pack_on(head, out)``: the page's command for packing from a process of one's own."""

    def given(head: Node, out: Path) -> list[str]:
        places = {"SOURCE": str(tiny_source), "DATASET": str(out), "HEAD:6379": head.address}
        found = command("preshard pack", **places)
        return [str(Path(machine.python).with_name(found[0])), *found[1:], *short_options]

    return given


def shards(out: Path) -> list[Path]:
    """Shards that have their names."""
    return list(out.glob("shards/preshard-*.tar"))


def test_a_node_that_is_lost_in_the_middle_costs_its_tasks_alone(
    machine: Machine, wheel: Path, pack_on: PackOn, same_short_bytes: Callable[[Path], bool], tmp_path: Path
) -> None:
    """Fails when the loss of a node ends the job, loses or doubles what ran there, or leaves half of a shard."""
    machine.install(wheel)
    out = tmp_path / "dataset"
    with ExitStack() as stack:
        head = stack.enter_context(ray_node(machine, num_cpus=1))
        lost = stack.enter_context(ray_node(machine, head, num_cpus=1, ip="127.0.0.2"))
        with subprocess.Popen(pack_on(head, out), env=machine.environment(), stderr=subprocess.PIPE) as driver:
            while driver.poll() is None and not (len(shards(out)) > 1 and lost.tasks()):
                time.sleep(0.01)
            running, written = lost.tasks(), len(shards(out))
            kill_tree(lost.process)
            said = driver.communicate(timeout=120)[1].decode()
        assert driver.returncode == 0, said
    assert running, "no task was lost with the node"
    assert 0 < written < len(shards(out)), "the node was not lost in the middle"
    assert same_short_bytes(out)
    assert "Traceback" not in said


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_after_the_loss_of_the_head_the_same_command_goes_on(
    machine: Machine, wheel: Path, pack_on: PackOn, same_short_bytes: Callable[[Path], bool], tmp_path: Path
) -> None:
    """Fails when a driver waits for a cluster that is gone, does not say how to continue, or packs again what was done.

    Loops are compiled, as on a cluster.
    """
    machine.install(wheel)
    out = tmp_path / "dataset"
    compiled = {"NUMBA_DISABLE_JIT": "0"}
    with ray_node(machine, **compiled) as head:
        with subprocess.Popen(
            pack_on(head, out), env=machine.environment(**compiled), stderr=subprocess.PIPE
        ) as driver:
            while driver.poll() is None and len(shards(out)) < 4:
                time.sleep(0.01)
            kill_tree(head.process)
            lost = time.monotonic()
            said = driver.communicate(timeout=120)[1].decode()
        assert time.monotonic() - lost < 60
        assert driver.returncode == 1
        assert "Ray is gone" in said.splitlines()[-1]
        assert "run the same command again" in said.splitlines()[-1]
    kept = {path: path.stat().st_mtime_ns for path in shards(out)}
    assert not (out / "manifest.json").exists(), "the head was not lost in the middle"
    with ray_node(machine, **compiled) as head:
        again = machine.run(pack_on(head, out), **compiled)
    assert again.returncode == 0, again.stderr
    assert same_short_bytes(out)
    # the two CPUs may each have had a shard under its name and not yet on record
    assert sum(path.stat().st_mtime_ns != written for path, written in kept.items()) <= 2 < len(kept)
