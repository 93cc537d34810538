"""Long-lived ranks for tests of what is distributed."""

from __future__ import annotations

import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any


class GlooPool:
    """Long-lived processes, each a rank with one thread, so that a distributed example costs no process start."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._worlds, self._store, self._size = folder, 0, "", 0
        self._workers: list[tuple[subprocess.Popen[bytes], Connection]] = []

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
        while len(self._workers) < size:
            self._workers.append(self._start())
        if size != self._size:
            self._worlds, self._size = self._worlds + 1, size
            self._store = str(self._folder / f"store-{self._worlds}")
        code = function.__code__
        pipes = [pipe for _, pipe in self._workers[:size]]
        for rank, pipe in enumerate(pipes):
            task = (code.co_filename, function.__name__, self._store, rank, degrees, args)
            pipe.send_bytes(pickle.dumps(task))
        answers = self._collect(pipes)
        failed = {pipes.index(pipe): said for pipe, (good, said) in answers.items() if not good}
        if failed or len(answers) < size:
            self.close()
            said = "\n".join(f"rank {rank} of {size} failed:\n{text}" for rank, text in sorted(failed.items()))
            raise AssertionError(said or f"only {len(answers)} of {size} ranks answered")
        return [answers[pipe][1] for pipe in pipes]

    def _collect(self, pipes: list[Connection]) -> dict[Connection, tuple[bool, Any]]:
        """What each rank answered. After a failure the others, which may be waiting for it, get a few seconds more."""
        answers: dict[Connection, tuple[bool, Any]] = {}
        patience = 240.0
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

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection]:
        ours, theirs = Pipe()
        worker = Path(__file__).with_name("gloo_worker.py")
        process = subprocess.Popen(
            # Without -P the worker's folder would come first in sys.path.
            [sys.executable, "-P", str(worker), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        return process, ours

    def close(self) -> None:
        """End all processes."""
        for process, pipe in self._workers:
            pipe.close()
            process.kill()
            process.wait()
        self._workers, self._size = [], 0
