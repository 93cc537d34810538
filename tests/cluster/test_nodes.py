"""A head that is lost in the middle, and another one for the same job."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from page import PackOn
from process_trees import kill_tree
from ray_nodes import Machine, ray_node, shards


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
            pack_on(machine, head, out), env=machine.environment(**compiled), stderr=subprocess.PIPE
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
        again = machine.run(pack_on(machine, head, out), **compiled)
    assert again.returncode == 0, again.stderr
    assert same_short_bytes(out)
    # the two CPUs may each have had a shard under its name and not yet on record
    assert sum(path.stat().st_mtime_ns != written for path, written in kept.items()) <= 2 < len(kept)
