"""The ranks of one gloo world of the fixture ``gloo_pool``: each runs the functions that it is sent.

Started by path, with the numbers of inherited pipes as its arguments, one for each rank. It imports torch once and then
forks the ranks. It is not collected, and imports nothing of the tests: a function comes as the file that holds it and
its name.
"""

from __future__ import annotations

import importlib.util
import math
import os
import pickle
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from trainer.distributed.mesh import Mesh, build_mesh

TIMEOUT = timedelta(seconds=240)
"""For a machine that is busy with other tests; a rank that fails says so at once."""


@cache
def load(path: str) -> Any:
    """The module of a test file or conftest."""
    name = f"worker_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class World:
    """The process group of this rank. The meshes on it are kept from task to task."""

    def __init__(self) -> None:
        self._meshes: dict[tuple[int, ...], Mesh] = {}

    def join(self, store: str, rank: int, degrees: tuple[int, int, int, int]) -> Mesh:
        """This rank's place in a mesh of (dp_replicate, dp_shard, ring, ulysses)."""
        if not dist.is_initialized():
            size = math.prod(degrees)
            dist.init_process_group(
                "gloo", store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=TIMEOUT
            )
        if degrees not in self._meshes:
            dp_replicate, dp_shard, ring, ulysses = degrees
            self._meshes[degrees] = build_mesh(
                "cpu", dp_replicate=dp_replicate, dp_shard=dp_shard, ring_degree=ring, ulysses_degree=ulysses
            )
        return self._meshes[degrees]


def serve(pipe: Connection) -> None:
    """Run tasks until the pool closes the pipe."""
    world = World()
    while True:
        try:
            task = pipe.recv_bytes()
        except EOFError:
            return
        try:
            path, name, store, rank, degrees, args = pickle.loads(task)
            function: Callable[..., Any] = getattr(load(path), name)
            answer = (True, function(world.join(store, rank, degrees), *args))
        except Exception:
            answer = (False, traceback.format_exc())
        pipe.send_bytes(pickle.dumps(answer))


def main(fds: list[int]) -> None:
    """Forks one rank for each pipe, and waits for all of them to end."""
    torch.set_num_threads(1)
    for fd in fds:
        if os.fork() == 0:
            for other in fds:
                if other != fd:
                    os.close(other)
            serve(Connection(fd))
            os._exit(0)
    for fd in fds:
        os.close(fd)
    for _ in fds:
        os.wait()


if __name__ == "__main__":
    main([int(word) for word in sys.argv[1:]])
