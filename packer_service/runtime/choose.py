"""What runs a job's tasks: this machine, or Ray, which is imported and started when the first task needs it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from preshard.packer_service.runtime.executors import Executor
from preshard.packer_service.runtime.local import LocalExecutor
from preshard.packer_service.runtime.progress import Progress
from preshard.schemas.errors import ConfigError

T = TypeVar("T")
R = TypeVar("R")

EXECUTORS = ("auto", "local", "ray")


@contextmanager
def chosen_executor(kind: str, address: str | None, num_cpus: int | None, progress: Progress) -> Iterator[Executor]:
    """What runs tasks for as long as the block lasts.

    Args:
        kind: ``local``, ``ray``, or ``auto``: Ray where an address is given, in ``RAY_ADDRESS`` too, or where this
            process has started a Ray, and else ``local``.
        address: as of :func:`preshard.packer_service.runtime.ray.ray_cluster`.
        num_cpus: CPUs to use, where Ray does not run already.
        progress: told that Ray starts.

    Raises:
        ConfigError: there is no executor of this name, or an address is given for one that has none.
    """
    if kind not in EXECUTORS:
        raise ConfigError(f"executor {kind!r}: no such executor; legal are {', '.join(EXECUTORS)}")
    if kind == "local" and address is not None:
        raise ConfigError(f"--ray-address {address}: --executor local runs no Ray; leave one of the two out")
    on_ray = kind == "ray" or (kind == "auto" and bool(address or os.environ.get("RAY_ADDRESS") or _has_ray()))
    with ExitStack() as stack:
        yield _RayOnUse(stack, address, num_cpus, progress) if on_ray else stack.enter_context(LocalExecutor(num_cpus))


def _has_ray() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


class _RayOnUse:
    """Starts Ray with the first task, so that a run with nothing to do does not wait for it."""

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
