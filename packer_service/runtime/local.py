"""Tasks on this machine without Ray: in this process, and in one more for each further CPU where that pays."""

from __future__ import annotations

import os
import queue
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from preshard.packer_service.runtime.executors import Executor, Failure, OnNodes, attempt, last_line, result_of
from preshard.packer_service.runtime.progress import Progress
from preshard.packer_service.runtime.workers import CallFailedError, Isolated, Limits
from preshard.schemas.errors import ConfigError

if TYPE_CHECKING:
    from preshard.packer_service.runtime.proof import Proof

T = TypeVar("T")
R = TypeVar("R")

EXECUTORS = ("auto", "local", "ray")
HEAD_START = 10.0
"""Seconds that this process works alone. Another one needs some eight of a processor before its first task is done: it
imports what tasks need, reads the tokenizer, and starts a decoder of its own."""
TRIES = 3
"""Processes that a task may lose, as to a kernel out of memory, before the job ends."""
END_SECONDS = 5.0
"""Longest wait for a helper's thread: one whose process is just starting ends by itself."""
UNLIMITED = Limits(memory=None, cpu_seconds=None, asleep_seconds=None, tries=TRIES)
"""Limits of a task, which has none: decoders and templates have limits of their own inside it."""
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


class LocalExecutor:
    """Runs each item here, and beside this process in helper processes that end with it.

    Which process runs a task decides nothing. A helper that is killed loses its task alone, which another one runs.

    Args:
        num_cpus: processes that run tasks, this one included; by default as many as there are CPUs.
    """

    def __init__(self, num_cpus: int | None = None) -> None:
        self.num_cpus = num_cpus or count_cpus()
        self._idle: list[Isolated] = []

    def __enter__(self) -> LocalExecutor:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        while self._idle:
            self._idle.pop().close()

    def run(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        """Runs all items, and yields each result with its item's index.

        Raises:
            TaskError: a task failed, or killed every process that it was run in.
        """
        tasks, left = _Tasks(function, items), len(items)
        helpers = [_Helper(tasks, self._idle) for _ in range(min(self.num_cpus, left) - 1)]
        for helper in helpers:
            helper.start()
        try:
            for index, item in tasks.take():
                left -= 1
                yield index, result_of(attempt(function, item))
                while not tasks.results.empty():
                    left -= 1
                    yield tasks.receive()
            for _ in range(left):
                yield tasks.receive()
        finally:
            tasks.over.set()
            for helper in helpers:
                helper.end()


class _Tasks:
    """The items of a run, each taken once by whoever is free, and what helpers found."""

    def __init__(self, function: Callable[[Any], Any], items: Sequence[Any]) -> None:
        self.function = function
        self.results: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self.over = threading.Event()
        self._items, self._begun, self._lock = items, 0, threading.Lock()

    def take(self) -> Iterator[tuple[int, Any]]:
        """Items with their indices, until none is left or the run is over."""
        while not self.over.is_set():
            with self._lock:
                index = self._begun
                self._begun = min(index + 1, len(self._items))
            if index == len(self._items):
                return
            yield index, self._items[index]

    def receive(self) -> tuple[int, Any]:
        """The next result of a helper, as soon as it is there."""
        index, found = self.results.get()
        return index, result_of(found)


class _Helper(threading.Thread):
    """Runs tasks in a process of its own for as long as there are any, and then leaves the process for the next run."""

    def __init__(self, tasks: _Tasks, idle: list[Isolated]) -> None:
        super().__init__(daemon=True, name="helper")
        self.tasks, self.idle = tasks, idle
        self._process: Isolated | None = None

    def run(self) -> None:
        with suppress(IndexError):
            self._process = self.idle.pop()
        if self._process is None:
            if self.tasks.over.wait(HEAD_START):
                return
            self._process = Isolated(UNLIMITED)
            if isinstance(self._ask(self._process, callable, self.tasks.function), Failure):
                return  # it imports what the tasks need before it takes one that others could do
        for index, item in self.tasks.take():
            self.tasks.results.put((index, self._ask(self._process, attempt, self.tasks.function, item)))
        if not self._process.is_over:
            self.idle.append(self._process)

    def end(self) -> None:
        """Ends the process if it is at work, and waits for the thread."""
        if self._process is not None and self._process.is_asked:
            self._process.stop()
        self.join(END_SECONDS)

    def _ask(self, process: Isolated, function: Callable[..., Any], *args: Any) -> Any:
        try:
            [found] = process.call(function, *args)
        except Exception as error:  # a process that ended, and whatever keeps one from starting
            return Failure(f"its process {error}" if isinstance(error, CallFailedError) else last_line(error), "")
        return found


def count_cpus() -> int:
    """The CPUs that this process may use: by its affinity and, in a container, its share of them."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):
        quota, period = CPU_QUOTA.read_text().split()
        cpus = min(cpus, -(-int(quota) // int(period)))  # without a quota it is "max"
    return max(1, cpus)


@contextmanager
def choose_executor(
    kind: str,
    address: str | None,
    num_cpus: int | None,
    progress: Progress,
    *,
    wait_minutes: float | None = None,
    skip_bad_nodes: bool = False,
) -> Iterator[Executor]:
    """Opens the executor that runs tasks for as long as the block lasts.

    Args:
        kind: ``local``, ``ray``, or ``auto``: Ray where an address is given, in ``RAY_ADDRESS`` too, or where this
            process has started a Ray, and else ``local``.
        address: as of :func:`preshard.packer_service.runtime.ray.ray_cluster`.
        num_cpus: CPUs to use, where Ray does not run already.
        progress: told that Ray starts, and what it waits for.
        wait_minutes: longest time without a task that runs on Ray; by default half an hour.
        skip_bad_nodes: whether a node that differs from this machine is left out instead of ending the job.

    Raises:
        ConfigError: there is no executor of this name, or an address is given for one that has none.
    """
    if kind not in EXECUTORS:
        raise ConfigError(f"executor {kind!r}: no such executor; legal are {', '.join(EXECUTORS)}")
    if kind == "local" and address is not None:
        raise ConfigError(f"--ray-address {address}: has no effect with --executor local; leave one of them out")
    on_ray = kind == "ray" or (kind == "auto" and bool(address or os.environ.get("RAY_ADDRESS") or _has_ray()))
    with ExitStack() as stack:
        if on_ray:
            asked = {"skip_bad": skip_bad_nodes} | ({} if wait_minutes is None else {"wait_minutes": wait_minutes})
            yield _RayOnUse(stack, address, num_cpus, progress, asked)
        else:
            yield stack.enter_context(LocalExecutor(num_cpus))


def _has_ray() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


class _RayOnUse:
    """Starts Ray with the first task, so that a run with nothing to do does not wait for it."""

    def __init__(
        self,
        stack: ExitStack,
        address: str | None,
        num_cpus: int | None,
        progress: Progress,
        asked: Mapping[str, Any],
    ) -> None:
        self.stack = stack
        self.asked = asked
        self.make_proof: Callable[[], Proof] | None = None
        self.address = address
        self.num_cpus = num_cpus
        self.progress = progress
        self.executor: Executor | None = None

    @property
    def node(self) -> str:
        return self.executor.node if isinstance(self.executor, OnNodes) else ""

    def require(self, make_proof: Callable[[], Proof]) -> None:
        self.make_proof = make_proof

    def run(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        if not items:
            return
        if self.executor is None:
            self.progress.doing("starting Ray")
            self.progress.note("starting Ray")
            # a thread that outlives the job for a moment must not start another Ray
            os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
            from preshard.packer_service.runtime.nodes import Nodes
            from preshard.packer_service.runtime.ray import ray_cluster

            nodes = Nodes(note=self.progress.note, make_proof=self.make_proof, **self.asked)
            self.executor = self.stack.enter_context(ray_cluster(self.address, self.num_cpus, nodes))
            self.progress.doing("waiting for the first task")
        yield from self.executor.run(function, items)
