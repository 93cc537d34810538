"""A cluster on which nothing moves, and nodes that differ."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from preshard.packer_service.runtime import nodes as state
from preshard.packer_service.runtime.executors import TaskError
from preshard.packer_service.runtime.nodes import Ended, Here, Nodes, Standstill, Started
from preshard.packer_service.runtime.proof import Proof, make_proof

NODE, OTHER = Here("a", "10.0.0.1 (one)"), Here("b", "10.0.0.2 (two)")


class Cluster:
    """A cluster of which only the state is there, and its clock."""

    def __init__(self) -> None:
        self.now, self.cpus = 0.0, 0
        self.started: list[Started] = []
        self.ended: dict[str, Ended] = {}
        self.said: list[str] = []

    def begin(self, worker: str, item: int, node: Here = NODE) -> None:
        self.started.append(Started(worker=worker, node=node, item=item, label=f"rows {item}", at=self.now))

    def kill(self, worker: str, *, for_memory: bool = True) -> None:
        self.ended[worker] = Ended("10.0.0.1", self.now, for_memory, 3 << 30)

    def watch(self, total: int = 4) -> Standstill:
        return Standstill("run", total, Nodes(note=self.said.append, wait_minutes=2.0), lambda: self.now)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(state, "_started", lambda _: made.started)
    monkeypatch.setattr(state, "_ended_workers", lambda: dict(made.ended))
    alive = {"Alive": True, "NodeID": "a"}
    monkeypatch.setattr(state.ray, "nodes", lambda: [{**alive, "Resources": {"CPU": made.cpus}}])
    return made


def look_for(cluster: Cluster, watch: Standstill, seconds: int) -> None:
    for cluster.now in range(0, seconds, 5):
        watch.look()


def test_a_cluster_without_a_cpu_is_said_seldom_and_has_an_end(cluster: Cluster) -> None:
    """Fails when a job waits in silence or for ever, or fills its log with what it waits for."""
    watch = cluster.watch()
    with pytest.raises(TaskError, match=r"no task ran for 2 min .*add workers, or wait longer by --wait-for-workers"):
        look_for(cluster, watch, 200)
    assert cluster.said == [
        f"no task has ended for {seconds} s: 1 node with 0 CPUs, 0 tasks running, 4 pending, waiting for workers"
        for seconds in (10, 20, 40, 80)
    ]
    assert cluster.now == 125


def test_a_task_that_takes_long_is_named_and_waited_for(cluster: Cluster) -> None:
    """Fails when a long task ends the job, or nobody hears which one it is."""
    watch, cluster.cpus = cluster.watch(), 1
    cluster.begin("w", 2)
    look_for(cluster, watch, 1000)
    assert cluster.said[0] == (
        "no task has ended for 10 s: 1 node with 1 CPU, 1 task running, 3 pending, the oldest is rows 2 on node "
        "10.0.0.1 (one)"
    )
    watch.move()
    cluster.now += 5
    n_said = len(cluster.said)
    watch.look()
    assert len(cluster.said) == n_said < 9


def kill_for_memory(cluster: Cluster, watch: Standstill, *, beside: bool, node: Here = NODE) -> None:
    for number in range(3):
        cluster.now += 20
        cluster.begin(f"w{number}", 2, node)
        if beside:
            cluster.begin(f"beside-{number}", 3)
        cluster.now += 1
        cluster.kill(f"w{number}")
        watch.look()
    cluster.now += 60
    watch.look()


def test_a_task_that_no_node_has_memory_for_ends_the_job(cluster: Cluster) -> None:
    """Fails when a row that needs more memory than a node has is tried for ever."""
    said = (
        r"rows 2: was killed for memory 3 times with 3\.0 GiB, alone on its node \(10\.0\.0\.1 \(one\)\); give workers"
    )
    with pytest.raises(TaskError, match=said):
        kill_for_memory(cluster, cluster.watch(), beside=False)


def test_a_task_that_was_killed_beside_others_is_tried_again(cluster: Cluster) -> None:
    """Fails when a row is blamed for what another task took, or nobody hears of the kills."""
    kill_for_memory(cluster, cluster.watch(), beside=True)
    assert "3 workers killed for memory (3 on node 10.0.0.1)" in cluster.said[-1]


def with_other_pillow(whole: Proof) -> Proof:
    return replace(whole, software=tuple((n, "0.1" if n == "pillow" else v) for n, v in whole.software))


@pytest.fixture
def makes(tmp_path: Path) -> Callable[[], Proof]:
    return lambda: with_other_pillow(make_proof("OUT", str(tmp_path / "nodes"), []))


def double(item: int) -> int:
    return 2 * item


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in (
        "preshard.packer_service.runtime.nodes.FIRST_SECONDS",
        "preshard.packer_service.runtime.ray.LOOK_SECONDS",
    ):
        monkeypatch.setattr(name, 0.1)
    return


@pytest.mark.usefixtures("ray_session", "quick")
@pytest.mark.parametrize("skip", [False, True])
def test_a_node_with_another_package_runs_no_task(makes: Callable[[], Proof], skip: bool) -> None:
    """Fails when a worker packs with another Pillow than the driver's, or one that was left out is waited for."""
    from preshard.packer_service.runtime.ray import ray_cluster

    said: list[str] = []

    def note(line: str) -> None:
        said.append(line)
        if line.startswith("left out node"):
            asked.wait_minutes = 0.0  # no other node will come

    asked = Nodes(note=note, skip_bad=skip)
    with ray_cluster(None, None, asked) as executor:
        executor.require(makes)
        with pytest.raises(TaskError) as failed:
            list(executor.run(double, [1, 2]))
    fault = "pillow "
    if skip:
        assert [line.partition(": ")[2][: len(fault)] for line in said if line.startswith("left out node")] == [fault]
        assert "1 node left out" in str(failed.value)
    else:
        assert f": {fault}" in str(failed.value)
        assert "or leave such nodes out by --skip-bad-nodes" in str(failed.value)


@pytest.mark.usefixtures("ray_session")
def test_each_process_proves_its_node_once(tmp_path: Path) -> None:
    """Fails when every task pays for the proof, or none gives it."""
    from preshard.packer_service.runtime.ray import ray_cluster

    with ray_cluster(None, None, Nodes()) as executor:
        executor.require(lambda: make_proof("OUT", str(tmp_path / "nodes"), []))
        assert sorted(executor.run(double, list(range(8)))) == [(i, 2 * i) for i in range(8)]
        assert list(executor.run(double, [1])) == [(0, 2)]
    workers = [path.name for path in (tmp_path / "nodes").iterdir() if not path.name.startswith("driver-")]
    assert 1 <= len(workers) <= 2 + 1
