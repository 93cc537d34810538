"""All ranks of a pack as threads over one device.

Two things differ from ``thread_ranks``, which gives the collectives. CUDA's autograd has one thread for each device, in
which the first rank would wait for the second for ever: each rank goes backward in its own thread. And what
``torch.compile`` does is not for several threads: a kernel's calls are handed to the main thread.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from queue import Queue
from typing import Any

import thread_ranks
import torch

Call = tuple[Callable[[], Any], bool, "Future[Any]"]


class MainThread:
    """Calls that other threads hand to the main one, which runs them while it waits for those threads."""

    def __init__(self) -> None:
        self._calls: Queue[Call | None] = Queue()

    def run(self, call: Callable[[], Any]) -> Any:
        """The result of a call that the main thread makes, with this thread's grad mode."""
        if threading.current_thread() is threading.main_thread():
            return call()
        answer: Future[Any] = Future()
        self._calls.put((call, torch.is_grad_enabled(), answer))
        return answer.result()

    def wait_for(self, work: Callable[[], Any]) -> Any:
        """The result of work in another thread."""
        answer: Future[Any] = Future()

        def start() -> None:
            _fill(answer, work)
            self._calls.put(None)

        threading.Thread(target=start).start()
        while (taken := self._calls.get()) is not None:
            call, grad, reply = taken
            with torch.set_grad_enabled(grad):
                _fill(reply, call)
        return answer.result()


def _fill(answer: Future[Any], call: Callable[[], Any]) -> None:
    try:
        answer.set_result(call())
    except BaseException as error:  # it is raised where the answer is asked for
        answer.set_exception(error)


MAIN = MainThread()


@dataclass(frozen=True)
class MainThreadKernel:
    """A kernel whose methods run in the main thread."""

    kernel: Any

    def prepare(self, *args: Any) -> Any:
        return MAIN.run(partial(self.kernel.prepare, *args))

    def forward(self, *args: Any) -> Any:
        return MAIN.run(partial(self.kernel.forward, *args))

    def backward(self, *args: Any) -> Any:
        return MAIN.run(partial(self.kernel.backward, *args))

    def whole(self, *args: Any) -> Any:
        made = MAIN.run(partial(self.kernel.whole, *args))
        backward = made.backward
        return replace(made, backward=lambda *given: MAIN.run(partial(backward, *given)))


def run_ranks(ulysses: int, ring: int, function: Callable[[Any], Any]) -> list[Any]:
    """Results of a function on each rank, by ``cp_rank``; its kernel is a ``MainThreadKernel``."""

    def one(cp: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return function(cp)

    found: list[Any] = MAIN.wait_for(lambda: thread_ranks.run_ranks(ulysses, ring, one))
    return found
