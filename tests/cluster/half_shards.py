"""A shard of which half is written when the node of its task is lost, however fast or slow the machine is.

Imported by Ray's workers, so nothing of the tests is imported here.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, partialmethod
from pathlib import Path
from typing import Any, BinaryIO

from preshard.packer_service.runtime.executors import Executor
from preshard.packer_service.shards.store import Folder

DOOMED = "PRESHARD_TEST_DOOMED_NODE"
"""Variable in the environment of the node that will be lost."""
LONG = 240.0
"""Seconds after which a task has waited in vain for one on that node."""


@dataclass(frozen=True, kw_only=True)
class HoldingExecutor:
    """Ends no task that writes a shard before the doomed node is in the middle of one, which it does not finish.

    Args:
        executor: what runs the tasks.
        marker: file that is there as soon as half of a shard has been written on that node.
    """

    executor: Executor
    marker: Path

    def run(self, function: Callable[..., Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        writes = function.func.__name__ == "build_and_keep"  # type: ignore[attr-defined]
        return self.executor.run(partial(_held, self.marker, function) if writes else function, items)


def _held(marker: Path, function: Callable[[Any], Any], item: Any) -> Any:
    """Runs in a Ray task: that on the doomed node ends with it, the others when it has half of a shard."""
    if DOOMED in os.environ:
        Folder.writer = partialmethod(_half_writer, Folder.writer, marker)  # type: ignore[assignment,method-assign]
        return function(item)
    until = time.monotonic() + LONG
    while not marker.exists():
        assert time.monotonic() < until, "the doomed node was given no shard"
        time.sleep(0.02)
    return function(item)


@contextmanager
def _half_writer(folder: Folder, writer: Callable[..., Any], marker: Path, name: str) -> Iterator[_HalfSink]:
    with writer(folder, name) as sink:
        yield _HalfSink(sink, marker)


class _HalfSink:
    """Takes half of the first bytes, and waits for the end."""

    def __init__(self, sink: BinaryIO, marker: Path) -> None:
        self.sink, self.marker = sink, marker

    def write(self, data: bytes) -> int:
        self.sink.write(data[: len(data) // 2])
        self.sink.flush()
        self.marker.touch()
        time.sleep(LONG)
        raise TimeoutError("the doomed node was not lost")
