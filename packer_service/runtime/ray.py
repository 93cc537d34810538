"""Ray decides where a task runs, never what it does. With ``nodes``, the only module that imports Ray."""

from __future__ import annotations

import logging
import os
import pickle
import queue
import signal
import socket
import threading
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Any, TypeVar

import pyarrow as pa
import ray
import ray.data
import ray.data.exceptions
import ray.exceptions
from ray.util.metrics import Counter, Gauge

from preshard.packer_service.runtime.executors import (
    REASON_CHARACTERS,
    Failure,
    TaskCounts,
    TaskError,
    attempt,
    last_line,
    result_of,
)
from preshard.packer_service.runtime.interrupt import exit_at_once
from preshard.packer_service.runtime.nodes import LOOK_SECONDS, Here, Nodes, Standstill, forget, here, noted
from preshard.packer_service.runtime.probe import RayLostError, Service, until_lost
from preshard.packer_service.runtime.proof import Proof
from preshard.schemas.errors import ConfigError

T = TypeVar("T")
R = TypeVar("R")

START_SECONDS = 60.0
"""Longest start of Ray: it waits 30 s for its process on this machine, and ends ours after 70 s without a head."""
ADDRESS_SECONDS = 10
"""Longest wait for a connection to the address of a cluster."""
HEAD_PATIENCE = 30.0
"""A cluster's head that was set up to be fault tolerant is back within seconds."""
LEAST_WINDOW = 1024
"""Tasks that Ray is given at once on a small machine: their items take 2 MiB of its store."""
TASKS_PER_CPU = 16
"""Tasks that it is given at once for each CPU of a large cluster: a window lasts longer than its start takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RayExecutor:
    """Runs each item as one task of a Ray Data pipeline, on one CPU.

    A block holds one item, which refers to work (a byte range of a source file, the plan of a shard), and one result,
    which is lengths or a name: pixels never travel through blocks. Tasks are stateless functions, not actors, so that
    one CPU is enough; a process keeps what is expensive to load.

    Args:
        services: processes of Ray without which no result arrives.
        window: most tasks that Ray is given at once, of which two windows may overlap; by default, for the cluster.
        nodes: what the job asks of its nodes.
    """

    services: Sequence[Service]
    window: int | None = None
    nodes: Nodes = field(default_factory=Nodes)

    @property
    def node(self) -> str:
        return self.nodes.last

    def require(self, make_proof: Callable[[], Proof]) -> None:
        self.nodes.make_proof = make_proof

    def run(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        if not items:
            return
        task = _Task(function, self.nodes.proof)
        metrics = JobMetrics(task.__name__, len(items))
        try:
            for row in until_lost(partial(_rows, task, items, self.window, self.nodes), self.services):
                result = result_of(pickle.loads(row["result"]))
                metrics.done(result)
                self.nodes.last = row["node"]
                yield row["index"], result
        except (ray.exceptions.RayError, ray.data.exceptions.UserCodeException) as error:
            cause = getattr(error, "cause", None) or error
            node = f" on node {error.ip}" if getattr(error, "ip", None) else ""
            raise TaskError(
                f"a task failed{node} ({type(cause).__name__}: {last_line(cause)}); finished work is kept"
            ) from error


def _rows(task: _Task, items: Sequence[Any], size: int | None, nodes: Nodes) -> Iterator[dict[str, Any]]:
    """Yields one row for each finished item. What a node that differs has returned is done again on others."""
    _keep_quiet()
    standstill = Standstill(task.run, len(items), nodes)
    numbers: Sequence[int] = range(len(items))
    try:
        while numbers:
            again = list[int]()
            for row in _windows(task, items, numbers, size, nodes, standstill):
                where = Here(row["node_id"], row["node"])
                fault = row["fault"]
                if row["proof"] and not fault and task.proof is not None and not task.proof.is_seen(row["proof"]):
                    fault = task.proof.unseen
                if fault:
                    nodes.refuse(where, fault)
                if where.node_id in nodes.bad:
                    again.append(row["index"])
                else:
                    standstill.move()
                    yield row
            numbers = again
    except TaskError:
        # pipelines that are left behind end with the connection, of which Ray Data would print the stack
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        raise
    finally:
        forget(task.run)


def _windows(
    task: _Task, items: Sequence[Any], numbers: Sequence[int], size: int | None, nodes: Nodes, standstill: Standstill
) -> Iterator[dict[str, Any]]:
    """Runs the items of these numbers.

    Ray Data wants the whole input of a pipeline before its first task runs, and holds it until the last one has ended.
    So the items come in windows, each a pipeline of its own, and the next window begins when fewer tasks are left than
    there are CPUs: none of them waits for the last task of a window.
    """
    found: queue.Queue[Any] = queue.Queue(maxsize=1)
    begun = left = 0
    while begun < len(numbers):
        cpus = int(ray.cluster_resources().get("CPU", 0))  # of a cluster that may have grown
        window = numbers[begun : begun + (size or max(LEAST_WINDOW, TASKS_PER_CPU * cpus))]
        threading.Thread(
            target=_run_window, args=(task, items, window, nodes.placement, found), daemon=True, name="window"
        ).start()
        begun, left = begun + len(window), left + len(window)
        while left > (cpus if begun < len(numbers) else 0):
            try:
                row = found.get(timeout=LOOK_SECONDS)
            except queue.Empty:
                standstill.look()
                continue
            if isinstance(row, BaseException):
                raise row
            left -= 1
            yield row


def _run_window(
    task: _Task, items: Sequence[Any], window: Sequence[int], placement: dict[str, Any], found: queue.Queue[Any]
) -> None:
    """Runs some of the items as one pipeline; what it finds, or the error that ends it, goes into the queue."""
    try:
        # one item per block: the driver holds references, and Ray's store the items, which it can spill
        blocks = [ray.put(pa.table({"index": [i], "item": [pickle.dumps(items[i])]})) for i in window]
        for row in ray.data.from_arrow_refs(blocks).map(task, num_cpus=1, **placement).iter_rows():
            found.put(row)
    except BaseException as error:  # it belongs to the thread that waits
        found.put(error)


class _Task:
    """Makes a function of items one of rows. Items and results are pickled, so that Arrow guesses no types from them.

    A failure is a result too: of an exception, Ray would log the stack and replace the reason by words of its own. A
    process proves its node before its first task, of which it says so.

    Args:
        function: of an item.
        proof: what processes prove, if anything.
    """

    def __init__(self, function: Callable[[Any], Any], proof: Proof | None) -> None:
        self.function, self.proof = function, proof
        self.__name__ = getattr(getattr(function, "func", function), "__name__", "task")
        self.run = f"preshard-{uuid.uuid4().hex}"

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        where, index = here(), row["index"]
        name, fault = _prove(self.proof) if self.proof is not None else ("", None)
        said = {"index": index, "node_id": where.node_id, "node": where.name, "proof": name, "fault": fault or ""}
        if fault:
            return {**said, "result": b""}
        item = pickle.loads(row["item"])
        with noted(self.run, index, label_of(item, index), where):
            found = attempt(self.function, item)
        if isinstance(found, Failure):
            found = replace(found, node=where.name)
        return {**said, "result": pickle.dumps(found)}


_PROVEN = dict[str, str | None]()
"""Tokens of the jobs for which this process has proved its node, with the fault."""


def _prove(proof: Proof) -> tuple[str, str | None]:
    """The file that a process has just written for the driver, empty where it has done so before; and the fault."""
    if proof.token in _PROVEN:
        return "", _PROVEN[proof.token]
    name = f"{proof.token}-{ray.get_runtime_context().get_worker_id()}"
    _PROVEN[proof.token] = fault = proof.fault(name)
    return name, fault


def label_of(item: Any, index: int) -> str:
    """Name of an item in messages: the label of it, or of the last of several parts."""
    part = item[-1] if isinstance(item, tuple) else item
    return str(getattr(part, "label", None) or f"task {index + 1}")


@contextmanager
def ray_cluster(address: str | None, num_cpus: int | None, nodes: Nodes | None = None) -> Iterator[RayExecutor]:
    """Connects to the Ray cluster at ``address``, or starts one on this machine, for as long as the block lasts.

    Without an address, the one in ``RAY_ADDRESS`` is taken, which ``ray job submit`` sets, and else this machine. A Ray
    that this process has already started is used as it is.

    Raises:
        ConfigError: no Ray answers at the address, or ``num_cpus`` is given for a cluster.
        RayLostError: a Ray on this machine did not start.
    """
    nodes = nodes or Nodes()
    if ray.is_initialized():
        yield RayExecutor(services=_services(HEAD_PATIENCE), nodes=nodes)
        return
    target = address or os.environ.get("RAY_ADDRESS") or "local"
    if target != "local" and num_cpus is not None:
        raise ConfigError(
            f"--num-cpus {num_cpus}: sets the size of a Ray on this machine; leave it out for the cluster at {target}"
        )
    _connect(target, num_cpus)
    try:
        yield RayExecutor(services=_services(0.0 if target == "local" else HEAD_PATIENCE), nodes=nodes)
    except RayLostError:
        raise  # shutting down would wait for processes that are gone
    except BaseException:
        with suppress(Exception, SystemExit):  # threads inside Ray can make it fail; what ended the job counts
            ray.shutdown()
        raise
    else:
        ray.shutdown()


def _services(head_patience: float) -> list[Service]:
    """The two processes that this one cannot do without: Ray's on this machine, which never restarts, and the head."""
    context = ray.get_runtime_context()
    [mine] = [node for node in ray.nodes() if node["NodeID"] == context.get_node_id()]
    host, _, port = context.gcs_address.rpartition(":")
    return [
        Service(
            name="its process on this machine",
            address=(mine["NodeManagerAddress"], mine["NodeManagerPort"]),
            patience=0.0,
        ),
        Service(name="the head of the cluster", address=(host.strip("[]"), int(port)), patience=head_patience),
    ]


def _check_answers(target: str) -> None:
    """Tries a connection first, since Ray waits for minutes for an address at which nothing listens.

    Raises:
        ConfigError: nothing listens there.
    """
    host, _, port = target.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=ADDRESS_SECONDS).close()
    except OSError as error:
        raise ConfigError(f"--ray-address {target}: no Ray answers there ({error.strerror or error})") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:REASON_CHARACTERS]


def _keep_quiet() -> None:
    """Silences Ray Data, which would print a line or a bar for each pipeline: the job reports its own progress."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False


def _connect(target: str, num_cpus: int | None) -> None:
    _check_answers(target)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # else Ray waits for workers when it starts, for ever if one of them is killed meanwhile
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    # Ray would log errors of its own statistics actors; those of our tasks are results
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    local = {"num_cpus": num_cpus, "include_dashboard": False} if target == "local" else {}
    try:
        with _keep_sigterm(), _time_limit():
            ray.init(address=target, log_to_driver=False, logging_level="error", **local)
    except (ConnectionError, ValueError) as error:
        token = "; if it requires a token, copy ~/.ray/auth_token of its head here and set RAY_AUTH_MODE=token"
        raise ConfigError(f"--ray-address {target}: no Ray answers there ({_one_line(error)}){token}") from None
    except Exception as error:  # Ray raises plain ones when its processes end while it starts
        raise RayLostError(f"it could not be started: {_one_line(error)}") from error


@contextmanager
def _keep_sigterm() -> Iterator[None]:
    """Restores the handler of SIGTERM: Ray installs its own, which ends the process without a word."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _time_limit() -> Iterator[None]:
    """Ends the process when Ray's start takes too long: inside Ray's C++ no exception or signal can interrupt it."""
    error = RayLostError(f"it could not be started in {START_SECONDS:.0f} s")
    timer = threading.Timer(START_SECONDS, exit_at_once, [str(error)])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@cache
def _gauge(name: str, text: str) -> Gauge:
    return Gauge(name, description=text, tag_keys=("task",))


@cache
def _counter(name: str, text: str, *tags: str) -> Counter:
    # Ray forgets what a name counted when it is made a second time in one process
    return Counter(name, description=text, tag_keys=("task", *tags))


class JobMetrics:
    """Metrics of one pipeline, set by the driver as results arrive: a handful of sums for each task.

    Args:
        task: name of the function that the tasks run, which becomes the label ``task``.
        total: number of tasks.
    """

    def __init__(self, task: str, total: int) -> None:
        self.tags = {"task": task}
        self.n_done = 0
        _gauge("preshard_pack_tasks", "Tasks of this run.").set(total, self.tags)
        self._set_done()

    def done(self, result: object) -> None:
        """Counts a task and, where its result says what it made, that too."""
        self.n_done += 1
        self._set_done()
        if isinstance(result, TaskCounts):
            made = {name: number for name, number in result.amounts.items() if name != "rejected"}
            for name, number in made.items():
                self._count(f"preshard_pack_{name}", f"The {name} of finished tasks.", number)
            for code, number in result.rejects.items():
                self._count("preshard_pack_rejects", "Rejected documents by their code.", number, {"code": code})

    def _set_done(self) -> None:
        _gauge("preshard_pack_tasks_done", "Tasks that are finished.").set(self.n_done, self.tags)

    def _count(self, name: str, text: str, number: int, tags: Mapping[str, str] | None = None) -> None:
        if number > 0:  # Ray refuses to count nothing
            _counter(name, text, *(tags or {})).inc(number, {**self.tags, **(tags or {})})
