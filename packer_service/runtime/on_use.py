"""Ray, started when the first task needs it. A module of its own, since whoever imports it can import Ray."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import TypeVar

from preshard.packer_service.runtime.executors import Executor
from preshard.packer_service.runtime.progress import Progress

T = TypeVar("T")
R = TypeVar("R")


class RayOnUse:
    """Runs tasks on Ray and starts it with the first task, so that a run with nothing to do does not wait for it.

    Args:
        stack: what ends Ray when it is left.
        address: as of :func:`preshard.packer_service.runtime.ray.ray_cluster`.
        num_cpus: as of the same.
        progress: told that Ray starts.
    """

    def __init__(self, stack: ExitStack, address: str | None, num_cpus: int | None, progress: Progress) -> None:
        self.stack = stack
        self.address = address
        self.num_cpus = num_cpus
        self.progress = progress
        self.executor: Executor | None = None

    def run(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        if not items:
            return
        if self.executor is None:
            self.progress.note("starting Ray")
            # a thread that outlives the job for a moment must not start another Ray
            os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
            from preshard.packer_service.runtime.ray import ray_cluster

            self.executor = self.stack.enter_context(ray_cluster(self.address, self.num_cpus))
        yield from self.executor.run(function, items)
