"""Long-lived ranks for tests of what is distributed."""

from __future__ import annotations

import math
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener, wait
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class World:
    """Processes that are the ranks of one gloo world, all of one process group, and a pipe to each rank."""

    group: int
    pipes: list[Connection]
    store: str

    def signal(self, number: signal.Signals) -> None:
        os.killpg(self.group, number)

    def end(self) -> None:
        for pipe in self.pipes:
            pipe.close()
        with suppress(ProcessLookupError):  # they have ended by themselves
            self.signal(signal.SIGKILL)


class GlooPool:
    """Long-lived processes, each a rank with one thread, so that a distributed example costs no process start.

    There is a world of its own for each number of ranks, kept until the end: a rank whose world was replaced by another
    would keep threads that read from closed connections without a pause. One process imports torch and forks them all.
    """

    def __init__(self, folder: Path) -> None:
        self._folder, self._started = folder, 0
        self._worlds: dict[int, World] = {}
        self._ranks: Listener | None = None
        self._starter: subprocess.Popen[bytes] | None = None

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        ulysses: int = 1,
        ring: int = 1,
        dp_shard: int = 1,
        dp_replicate: int = 1,
    ) -> list[Any]:
        """``function(mesh, *args)`` on every rank of a ``Mesh`` of these degrees; results in rank order.

        The default process group is a gloo world of just these ranks. The function is a top-level one of a test file
        or a conftest; arguments and results are plain values, arrays and tensors.

        Raises:
            AssertionError: a rank raised, with its traceback. The next run starts afresh.
        """
        degrees = (dp_replicate, dp_shard, ring, ulysses)
        size = math.prod(degrees)
        if size not in self._worlds:
            self._worlds[size] = self._start(size)
        world = self._worlds[size]
        world.signal(signal.SIGCONT)
        try:
            answers = self._ask(world, function, degrees, args)
        except AssertionError:
            self._worlds.pop(size).end()
            raise
        world.signal(signal.SIGSTOP)  # each of gloo's threads would look for messages a hundred times a second
        return answers

    def run_apart(self, function: Callable[..., Any], *args: Any, size: int) -> list[Any]:
        """``function(rank, *args)`` on every rank of a new world whose ranks have not met; results in rank order.

        The world ends with it, so the function may do what a process does once: join others, or leave.

        Raises:
            AssertionError: a rank raised, with its traceback.
        """
        world = self._start(size)
        try:
            return self._ask(world, function, None, args)
        finally:
            world.end()

    def _ask(
        self, world: World, function: Callable[..., Any], degrees: tuple[int, ...] | None, args: tuple[Any, ...]
    ) -> list[Any]:
        """Asks each rank of a world for its answer. The degrees are those of the mesh that they join first, if any."""
        size, code = len(world.pipes), function.__code__
        for rank, pipe in enumerate(world.pipes):
            task = (code.co_filename, function.__name__, world.store, rank, degrees, args)
            pipe.send_bytes(pickle.dumps(task))
        answers = self._collect(world.pipes)
        failed = {world.pipes.index(pipe): said for pipe, (good, said) in answers.items() if not good}
        if failed or len(answers) < size:
            said = "\n".join(f"rank {rank} of {size} failed:\n{text}" for rank, text in sorted(failed.items()))
            raise AssertionError(said or f"only {len(answers)} of {size} ranks answered")
        return [answers[pipe][1] for pipe in world.pipes]

    def _collect(self, pipes: list[Connection]) -> dict[Connection, tuple[bool, Any]]:
        """Collects each rank's answer. After a failure the others, which may wait for it, get a few seconds more."""
        answers: dict[Connection, tuple[bool, Any]] = {}
        patience = 600.0
        while len(answers) < len(pipes):
            ready = wait([pipe for pipe in pipes if pipe not in answers], timeout=patience)
            if not ready:
                break
            for pipe in ready:
                assert isinstance(pipe, Connection)
                try:
                    answers[pipe] = pickle.loads(pipe.recv_bytes())
                except EOFError:
                    answers[pipe] = (False, "the process has ended")
                if not answers[pipe][0]:
                    patience = 2.0
        return answers

    def _start(self, size: int) -> World:
        if self._ranks is None or self._starter is None:
            self._ranks = Listener(family="AF_UNIX", backlog=64)
            assert isinstance(self._ranks.address, str)
            self._starter = subprocess.Popen(
                # Without -P the worker's folder would come first in sys.path.
                [sys.executable, "-P", str(Path(__file__).with_name("gloo_worker.py")), self._ranks.address],
                stdin=subprocess.PIPE,
                env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
        assert self._starter.stdin is not None
        self._starter.stdin.write(b"%d\n" % size)
        self._starter.stdin.flush()
        pipes = [self._ranks.accept() for _ in range(size)]
        [group] = {pipe.recv() for pipe in pipes}
        self._started += 1
        return World(group=group, pipes=pipes, store=str(self._folder / f"store-{self._started}"))

    def close(self) -> None:
        """Ends all processes."""
        while self._worlds:
            self._worlds.popitem()[1].end()
        if self._ranks is not None and self._starter is not None:
            self._starter.kill()  # a worker of a loader that is still there may hold its input open
            self._starter.communicate()
            self._ranks.close()
