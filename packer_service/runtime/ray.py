"""Ray says where a task runs, never what it does: the one place that imports Ray."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
import ray
import ray.data
import ray.data.exceptions
import ray.exceptions

from packer_service.runtime.executors import TaskError
from packer_service.runtime.last_words import last_words
from packer_service.runtime.watch import RayLostError, Service, Watch, children_watched, watched
from schemas.errors import ConfigError

T = TypeVar("T")
R = TypeVar("R")

_ENDED = (
    "preshard: the job was ended from outside: by SIGKILL, or by Ray because its process on this machine is gone; "
    "what was done is kept, run the same command again"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RayExecutor:
    """Runs each item as one task of a Ray Data pipeline, on one CPU.

    A block holds one item, which is a reference to work (a byte range of a source file, the plan of a shard), and one
    result, which is lengths or a name: pixels never travel through blocks. Tasks are stateless functions, not actors,
    so that one CPU is enough; what is expensive to load, a process keeps.
    """

    watch: Watch

    def run(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        if not items:
            return
        try:
            for row in watched(partial(_rows, _Task(function), items), self.watch):
                yield row["index"], _result(row)
        except (ray.exceptions.RayError, ray.data.exceptions.UserCodeException) as error:
            cause = getattr(error, "cause", None) or error
            raise TaskError(
                f"a task failed ({type(cause).__name__}: {_last_line(cause)}); what was done is kept"
            ) from error


def _rows(task: _Task, items: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """A row a finished item."""
    _keep_quiet()
    # one item at a time: the driver holds references, and Ray's store the items, which it can spill
    blocks = [ray.put(pa.table({"index": [i], "item": [pickle.dumps(item)]})) for i, item in enumerate(items)]
    rows: Iterator[dict[str, Any]] = ray.data.from_arrow_refs(blocks).map(task, num_cpus=1).iter_rows()
    return rows


def _result(row: dict[str, Any]) -> Any:
    """What a task gave back.

    Raises:
        TaskError: the function failed; where it did is a note of the error.
    """
    if row["failure"] is None:
        return pickle.loads(row["result"])
    failure = TaskError(f"a task failed ({row['failure']}); what was done is kept")
    failure.add_note(row["traceback"])
    raise failure


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"


class _Task:
    """A function on items as a function on rows; both sides pickled, so that no type is guessed from the values.

    A failure is a result too: as an exception, Ray would log its stack and put its own words where the reason stood.
    """

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function
        self.__name__ = getattr(getattr(function, "func", function), "__name__", "task")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        done = {"index": row["index"], "result": None, "failure": None, "traceback": None}
        try:
            return {**done, "result": pickle.dumps(self.function(pickle.loads(row["item"])))}
        except Exception as error:
            failure = f"{type(error).__name__}: {_last_line(error)}"
            return {**done, "failure": failure, "traceback": traceback.format_exc()}


@contextmanager
def ray_cluster(address: str | None, num_cpus: int | None) -> Iterator[RayExecutor]:
    """A Ray to run on: the cluster at ``address``, or one on this machine, for as long as the block lasts.

    Without an address, the one in ``RAY_ADDRESS``, which ``ray job submit`` sets, else this machine. A Ray that this
    process has started already is used as it is.

    Raises:
        ConfigError: no Ray answers at the address, or ``num_cpus`` is given for a cluster.
    """
    if ray.is_initialized():
        yield RayExecutor(watch=_watch())
        return
    target = address or os.environ.get("RAY_ADDRESS") or "local"
    if target != "local" and num_cpus is not None:
        raise ConfigError(f"--num-cpus {num_cpus}: sets the size of a local Ray; the cluster at {target} has its own")
    _connect(target, num_cpus)
    try:
        with last_words(_ENDED):
            yield RayExecutor(watch=_watch())
    except RayLostError:
        raise  # shutting down would wait for processes that are gone
    except BaseException:
        ray.shutdown()
        raise
    else:
        ray.shutdown()


def _watch() -> Watch:
    """The two processes without which this one cannot go on: Ray's on this machine, and the cluster's head."""
    context = ray.get_runtime_context()
    [mine] = [node for node in ray.nodes() if node["NodeID"] == context.get_node_id()]
    host, _, port = context.gcs_address.rpartition(":")
    return Watch(
        {
            "its process on this machine": Service(
                address=(mine["NodeManagerAddress"], mine["NodeManagerPort"]), patience=3.0
            ),
            # one that was set up to be fault tolerant is back within seconds
            "the head of the cluster": Service(address=(host.strip("[]"), int(port)), patience=30.0),
        }
    )


def _check_answers(target: str) -> None:
    """Ray waits for minutes for an address where nothing listens; a connection tells at once.

    Raises:
        ConfigError: nothing listens there.
    """
    host, _, port = target.removeprefix("ray://").rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except OSError as error:
        raise ConfigError(f"--ray-address {target}: no Ray there ({error.strerror or error})") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


def _keep_quiet() -> None:
    """The job says itself how far it is; Ray Data would add a line or a bar a pipeline."""
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False


def _end_without_ray(program: str) -> None:
    """Ends the process as the command line would: Ray, whose start cannot be interrupted, takes a minute for it."""
    error = RayLostError(f"it could not be started: its {program} has ended")
    print(f"preshard: {error}", file=sys.stderr, flush=True)
    os._exit(1)


def _connect(target: str, num_cpus: int | None) -> None:
    _check_answers(target)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # else its start waits for workers, and for ever when one of them is killed then
    os.environ.setdefault("RAY_prestart_worker_first_driver", "0")
    # of its own actors that count for its dashboard; errors of tasks are asked for
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    before = signal.getsignal(signal.SIGTERM)
    local = {"num_cpus": num_cpus, "include_dashboard": False} if target == "local" else {}
    try:
        with children_watched(("gcs_server", "raylet"), _end_without_ray):
            ray.init(address=target, log_to_driver=False, logging_level="error", **local)
    except (ConnectionError, ValueError) as error:
        raise ConfigError(f"--ray-address {target}: no Ray there ({_one_line(error)})") from None
    except Exception as error:  # Ray raises plain ones when its processes end while it starts
        raise RayLostError(f"it could not be started: {_one_line(error)}") from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)  # Ray puts its own in place, which ends the process without a word
