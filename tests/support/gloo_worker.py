"""The ranks of one gloo world of the fixture ``gloo_pool``: each runs the functions that it is sent.

Started by path, with the address that ranks connect to. It imports what most ranks need once, and then forks the ranks
of a world for each number that it reads. It is not collected, and imports nothing of the tests: a function comes as the
file that holds it and its name.
"""

from __future__ import annotations

import gc
import importlib.util
import math
import os
import pickle
import signal
import sys
import traceback
import types
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import cache
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

import hypothesis  # noqa: F401 (what the files of tests import)
import pandas  # noqa: F401 (pyarrow imports it with the first array)
import pyarrow.compute
import pyarrow.dataset  # noqa: F401
import pytest  # noqa: F401
import torch
import torch._dynamo  # what the first optimizer step of each rank would import
import torch.distributed as dist

import preshard.trainer.extra.parts
import preshard.trainer.extra.saving
import preshard.trainer.train  # noqa: F401 (what most ranks import)
from preshard.trainer.core.mesh import Mesh, build_mesh
from preshard.trainer.models.interface import register_attention

MODELS = ("Qwen3ForCausalLM", "Qwen3VLForConditionalGeneration")
"""Models that worlds of every size train, imported before the ranks are forked."""

TIMEOUT = timedelta(seconds=600)
"""Time-out for a machine that is busy with other tests; a rank that fails says so at once."""


sys.path.append(str(Path(__file__).parent))  # what files of tests import


@cache
def load(path: str) -> Any:
    """The module of a test file or conftest, which may import its neighbours."""
    name = f"worker_{abs(hash(path))}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    neighbours = str(Path(path).parent)
    sys.path.insert(0, neighbours)
    spec.loader.exec_module(module)
    sys.path.remove(neighbours)
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
            place = rank if degrees is None else world.join(store, rank, degrees)
            answer = (True, function(place, *args))
        except Exception:
            answer = (False, traceback.format_exc())
        pipe.send_bytes(pickle.dumps(answer))


def load_transformers() -> None:
    """Imports what each rank would for a Hugging Face model."""
    # This build of torchvision has operators for CUDA alone; what models use of it is plain torch.
    sys.modules.setdefault("torchvision._meta_registrations", types.ModuleType("torchvision._meta_registrations"))
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    transformers = register_attention()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for name in ("AutoModelForCausalLM", "AutoModelForImageTextToText", *MODELS):
        getattr(transformers, name)


def start_world(address: str, size: int) -> int:
    """Forks the ranks of a world; their process group."""
    group = 0
    for _ in range(size):
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, group)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            pipe = Client(address)
            pipe.send(os.getpgid(0))
            serve(pipe)
            os._exit(0)
        group = group or pid
        os.setpgid(pid, group)  # by both, since either may come first
    return group


def main(address: str) -> None:
    """Starts a world for each line until the pool ends or closes the pipe; then no rank is left."""
    torch.set_num_threads(1)
    load_transformers()
    gc.freeze()  # a collection would copy every page that the ranks share
    gc.set_threshold(10_000)  # as the tests' own process has it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the ranks
    groups = [start_world(address, int(line)) for line in sys.stdin]
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1])
