"""One process of the fixture ``gloo_pool``: runs the functions that it is sent as one rank of a gloo world.

Started by path, with the number of an inherited pipe as its argument. It is not collected, and imports nothing of the
tests: a function comes as the file that holds it and its name.
"""

from __future__ import annotations

import importlib.util
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
    """The process group of the present task, kept from task to task while its store stays the same."""

    def __init__(self) -> None:
        self._store = ""
        self._meshes: dict[tuple[int, ...], Mesh] = {}

    def join(self, store: str, rank: int, degrees: tuple[int, int, int, int]) -> Mesh:
        """This rank's place in a mesh of (dp_replicate, dp_shard, ring, ulysses)."""
        if store != self._store:
            if dist.is_initialized():
                dist.destroy_process_group()
            size = degrees[0] * degrees[1] * degrees[2] * degrees[3]
            dist.init_process_group(
                "gloo", store=dist.FileStore(store, size), rank=rank, world_size=size, timeout=TIMEOUT
            )
            self._store, self._meshes = store, {}
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


if __name__ == "__main__":
    torch.set_num_threads(1)
    serve(Connection(int(sys.argv[1])))
