"""Packing over two Ray nodes of which one is lost in the middle."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from process_trees import kill_tree
from ray_nodes import Machine, ray_node


def test_a_node_that_is_lost_in_the_middle_costs_its_tasks_alone(
    machine: Machine, wheel: Path, pack_arguments: list[str], same_bytes: Callable[[Path], bool], tmp_path: Path
) -> None:
    """Fails when the loss of a node ends the job, loses or doubles what ran there, or leaves half of a shard."""
    machine.install(wheel)
    out = tmp_path / "dataset"
    with ExitStack() as stack:
        head = stack.enter_context(ray_node(machine, num_cpus=1))
        lost = stack.enter_context(ray_node(machine, head, num_cpus=1, ip="127.0.0.2"))
        program = [str(Path(machine.python).with_name("preshard")), *pack_arguments, str(out)]
        with subprocess.Popen(
            [*program, "--ray-address", head.address], env=machine.environment(), stderr=subprocess.PIPE
        ) as driver:
            while driver.poll() is None and not (list(out.glob("shards/*.tar")) and lost.tasks()):
                time.sleep(0.01)
            running, written = lost.tasks(), len(list(out.glob("shards/*.tar")))
            kill_tree(lost.process)
            said = driver.communicate(timeout=120)[1].decode()
        assert driver.returncode == 0, said
    assert running, "no task was lost with the node"
    assert 0 < written < len(list(out.glob("shards/*.tar"))), "the node was not lost in the middle"
    assert same_bytes(out)
    assert "Traceback" not in said
