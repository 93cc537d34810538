"""State of a Ray cluster as a job needs it: who works, who was left out, and what a job without progress waits for."""

from __future__ import annotations

import json
import logging
import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ray
from ray.core.generated import common_pb2, gcs_pb2
from ray.experimental import internal_kv

from preshard.packer_service.runtime.executors import TaskError
from preshard.packer_service.runtime.proof import Proof

FIRST_SECONDS = 10.0
"""Seconds without progress until the job says what it waits for; each further line takes twice as long."""
LOOK_SECONDS = 5.0
"""Seconds between two looks at a run without progress."""
SELDOM_SECONDS = 600.0
"""Longest time between two such lines."""
WAIT_MINUTES = 30.0
"""Minutes to wait for workers, where nobody says another time. An autoscaler takes some minutes."""
MOST_KILLS = 3
"""Times that a task may be killed for memory while it is alone on its node."""


class Here(NamedTuple):
    """The node that this process runs on: its id in Ray, and as messages name it."""

    node_id: str
    name: str


def here() -> Here:
    return Here(ray.get_runtime_context().get_node_id(), f"{ray.util.get_node_ip_address()} ({os.uname().nodename})")


@dataclass(kw_only=True)
class Nodes:
    """Nodes of a job: what it asks of them, and what has become of it.

    Args:
        note: hears what a user should know.
        wait_minutes: longest time without a task that runs.
        skip_bad: whether a node that differs is left out instead of ending the job.
    """

    note: Callable[[str], None] = lambda _: None
    wait_minutes: float = WAIT_MINUTES
    skip_bad: bool = False
    make_proof: Callable[[], Proof] | None = None
    bad: dict[str, str] = field(default_factory=dict)
    """Ids of nodes that are left out, and their names."""
    last: str = ""
    """The node that the last result came from."""
    _proof: Proof | None = None

    @property
    def proof(self) -> Proof | None:
        """Proof that workers give, if any."""
        if self._proof is None and self.make_proof is not None:
            self._proof = self.make_proof()
        return self._proof

    def refuse(self, where: Here, fault: str) -> None:
        """Leaves a node out.

        Raises:
            BadNodeError: the job shall end instead.
        """
        if not self.skip_bad:
            raise BadNodeError(where.name, fault)
        if where.node_id not in self.bad:
            self.bad[where.node_id] = where.name
            self.note(f"left out node {where.name}: {fault}")

    @property
    def placement(self) -> dict[str, Any]:
        """Options of tasks that keep them off nodes that are left out."""
        return {"label_selector": {"ray.io/node-id": f"!in({','.join(self.bad)})"}} if self.bad else {}


class BadNodeError(TaskError):
    """A node differs from the driver's; finished work is kept."""

    def __init__(self, node: str, fault: str) -> None:
        super().__init__(f"node {node}: {fault}; or leave such nodes out by --skip-bad-nodes; finished work is kept")


@dataclass(frozen=True, kw_only=True, slots=True)
class Started:
    """A task that has begun and not ended in the process that began it."""

    worker: str
    node: Here
    item: int
    label: str
    at: float


@contextmanager
def noted(run: str, item: int, label: str, where: Here) -> Iterator[None]:
    """Notes in Ray's own store that this worker is at an item. One that is killed leaves its note. Runs in a worker."""
    key = f"{run}/{ray.get_runtime_context().get_worker_id()}".encode()
    with suppress(Exception):  # a head that is just gone
        internal_kv._internal_kv_put(key, json.dumps([*where, item, label, time.time()]).encode())
    yield
    with suppress(Exception):
        internal_kv._internal_kv_del(key)


def forget(run: str) -> None:
    """Removes all notes of a run."""
    with suppress(Exception):  # a head that is just gone
        internal_kv._internal_kv_del(f"{run}/".encode(), del_by_prefix=True)


def _started(run: str) -> list[Started]:
    found = []
    for key in internal_kv._internal_kv_list(f"{run}/".encode()):
        value = internal_kv._internal_kv_get(key)
        if value is not None:  # ended meanwhile
            node_id, name, item, label, at = json.loads(value)
            worker = key.decode().rpartition("/")[2]
            found.append(Started(worker=worker, node=Here(node_id, name), item=item, label=label, at=at))
    return found


class Ended(NamedTuple):
    """The end of a worker: on which address and when, whether for want of memory, and its bytes, 0 where unknown."""

    address: str
    at: float
    for_memory: bool
    bytes: int


def _ended_workers() -> dict[str, Ended]:
    """Workers of this cluster that have ended, as far back as the head remembers."""
    found = {}
    for line in ray._private.state.state._connect_and_get_accessor().get_worker_table():
        data = gcs_pb2.WorkerTableData.FromString(line)
        if not data.is_alive:
            for_memory = data.exit_type == common_pb2.WorkerExitType.NODE_OUT_OF_MEMORY
            size = getattr(data, "memory_used_bytes_at_death", 0)
            address = data.worker_address
            found[address.worker_id.hex()] = Ended(address.ip_address, data.end_time_ms / 1000, for_memory, size)
    return found


class Standstill:
    """Notices that a run makes no progress, says what it waits for, and ends it when that is hopeless.

    Args:
        run: prefix of the notes of :func:`noted`.
        total: tasks of the run.
        nodes: the job's.
    """

    def __init__(self, run: str, total: int, nodes: Nodes, clock: Callable[[], float] = time.monotonic) -> None:
        self._run, self._total, self._nodes, self._clock = run, total, nodes, clock
        self._done = 0
        self._since = self._ran = clock()
        self._next = FIRST_SECONDS
        self._before: set[str] = set()
        with suppress(Exception):  # see look
            self._before = set(_ended_workers())

    def move(self) -> None:
        """A task has ended."""
        self._done += 1
        self._since, self._next = self._clock(), FIRST_SECONDS

    def look(self) -> None:
        """
        Raises:
            TaskError: no task has run for too long, or one was killed for memory again and again.
        """
        try:
            self._look()
        except TaskError:
            raise
        except Exception as error:  # the head is just gone, and may be back; who waits for it hears of its end
            logging.getLogger(__name__).debug("the state of the cluster cannot be read: %s", error)

    def _look(self) -> None:
        now = self._clock()
        idle = now - self._since
        if idle < FIRST_SECONDS:
            self._ran = now
            return
        started = _started(self._run)
        ended = {worker: end for worker, end in _ended_workers().items() if worker not in self._before}
        running = [one for one in started if one.worker not in ended and self._is_alive(one.node)]
        _end_if_hopeless(started, ended)
        if running:
            self._ran = now
        if now - self._ran >= 60 * self._nodes.wait_minutes:
            raise TaskError(
                f"no task ran for {self._nodes.wait_minutes:g} min ({self._state(running, ended)}); add workers, or "
                "wait longer by --wait-for-workers MINUTES; finished work is kept, run the same command again"
            )
        if idle >= self._next:
            self._next = idle + min(idle, SELDOM_SECONDS)
            self._nodes.note(f"no task has ended for {idle:.0f} s: {self._state(running, ended)}")

    @staticmethod
    def _is_alive(node: Here) -> bool:
        return any(each["Alive"] and each["NodeID"] == node.node_id for each in ray.nodes())

    def _state(self, running: Sequence[Started], ended: Mapping[str, Ended]) -> str:
        alive = [node for node in ray.nodes() if node["Alive"] and node["NodeID"] not in self._nodes.bad]
        cpus = sum(int(node["Resources"].get("CPU", 0)) for node in alive)
        of_nodes = f"{_count(len(alive), 'node')} with {_count(cpus, 'CPU')}"
        if self._nodes.bad:
            of_nodes += f", {_count(len(self._nodes.bad), 'node')} left out"
        pending = self._total - self._done - len(running)
        parts = [of_nodes, f"{_count(len(running), 'task')} running, {pending} pending"]
        if running:
            oldest = min(running, key=lambda one: one.at)
            parts.append(f"the oldest is {oldest.label} on node {oldest.node.name}")
        killed = Counter(end.address for end in ended.values() if end.for_memory)
        if killed:
            where = ", ".join(f"{number} on node {address}" for address, number in killed.items())
            parts.append(f"{_count(killed.total(), 'worker')} killed for memory ({where})")
        if not cpus:
            parts.append("waiting for workers")
        return ", ".join(parts)


def _end_if_hopeless(started: Sequence[Started], ended: Mapping[str, Ended]) -> None:
    """
    Raises:
        TaskError: a task was killed for memory again and again while it was alone on its node.
    """
    alone = defaultdict[int, list[Started]](list)
    for one in started:
        if one.worker not in ended or not ended[one.worker].for_memory:
            continue
        end = ended[one.worker].at
        others = [other for other in started if other.worker != one.worker and other.node == one.node]
        if not any(o.at < end and (o.worker not in ended or ended[o.worker].at > one.at) for o in others):
            alone[one.item].append(one)
    for kills in alone.values():
        if len(kills) >= MOST_KILLS:
            most = max(ended[one.worker].bytes for one in kills)
            need = f" with {most / 2**30:.1f} GiB" if most else ""
            names = ", ".join(sorted({one.node.name for one in kills}))
            raise TaskError(
                f"{kills[0].label}: was killed for memory {len(kills)} times{need}, alone on its node ({names}); "
                "give workers more memory, or take the row out of the source; finished work is kept"
            )


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
