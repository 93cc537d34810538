"""A node that is lost in the middle of a job, and the head of the page's command."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from page import PackOn
from process_trees import kill_tree
from ray_nodes import Machine, Node, ThisMachine, ray_node, shards

from preshard.packer_service.config import load_config
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from tests.cluster.half_shards import DOOMED, HoldingExecutor

LOOK_SECONDS = 0.05
"""Seconds between two looks at what a job has written; a task takes several times as long."""


def lose_in_the_middle(lost: Node, marker: Path, out: Path, is_over: threading.Event) -> tuple[int, list[str]]:
    """Kills a node that is at a shard when others have written some; how many, and what the node had of its own."""
    while not (marker.exists() and shards(out)) and not is_over.is_set():
        time.sleep(LOOK_SECONDS)
    written, halves = len(shards(out)), [path.name for path in out.glob("shards/.tmp-*") if path.stat().st_size]
    kill_tree(lost.process)
    return written, halves


@pytest.mark.cluster
@pytest.mark.usefixtures("ray_session")
def test_a_node_that_is_lost_in_the_middle_costs_its_tasks_alone(
    tiny_source: Path,
    short_settings: list[str],
    same_short_bytes: Callable[[Path], bool],
    progress: Any,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Fails when the loss of a node ends the job, loses or doubles what ran there, or leaves half of a shard."""
    import ray

    from preshard.packer_service.runtime.ray import ray_cluster

    out, marker, is_over = tmp_path / "dataset", tmp_path / "marker", threading.Event()
    address = ray.get_runtime_context().gcs_address
    with (
        ray_node(ThisMachine(folder=tmp_path), address, num_cpus=1, ip="127.0.0.2", bare=True, **{DOOMED: "1"}) as lost,
        ray_cluster(None, None) as executor,
        ThreadPoolExecutor(max_workers=1) as pool,
    ):
        losing = pool.submit(lose_in_the_middle, lost, marker, out, is_over)
        try:
            holding = HoldingExecutor(executor=executor, marker=marker)
            pack([str(tiny_source)], str(out), load_config(None, short_settings), holding, progress)
        finally:
            is_over.set()
        written, halves = losing.result()
    assert halves, "the node was at no shard"
    assert 0 < written < len(shards(out)), "the node was not lost in the middle"
    assert same_short_bytes(out)
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.cluster
def test_a_job_whose_head_is_lost_says_so_and_goes_on_later(
    machine: Machine,
    wheel: Path,
    pack_on: PackOn,
    tiny_source: Path,
    short_settings: list[str],
    same_short_bytes: Callable[[Path], bool],
    progress: Any,
    tmp_path: Path,
) -> None:
    """Fails when a driver waits for Ray whose processes have all been killed, does not say how to continue, or leaves
    what the next run takes for whole or packs again.
    """
    machine.install(wheel)
    out = tmp_path / "dataset"
    with (
        ray_node(machine, num_cpus=1, bare=True) as head,  # one CPU shall not wait for itself
        subprocess.Popen(pack_on(machine, head, out), env=machine.environment(), stderr=subprocess.PIPE) as driver,
    ):
        while driver.poll() is None and len(shards(out)) < 2:
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
