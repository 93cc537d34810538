"""Runs pytest with workers that are forks of one process, which has imported what each of them would import.

    python tests/support/workers.py NUMBER [--beside COMMAND] [pytest's arguments]

Imports take seven seconds of each worker otherwise. First, what the workers would compile at the same time is compiled,
in forks as well. ``--beside`` is a command that runs meanwhile, such as the linters; if it fails, no test runs and its
status is the result.

pytest-xdist starts each worker as a Python of its own. That Python is tests/support/connect.py here, which hands its
standard streams to this process and waits until the fork that got them has ended; if it is killed, so is the fork.
"""

from __future__ import annotations

import argparse
import gc
import os
import selectors
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType

import pytest

PRELOADED = (
    "av",
    "boto3",
    "numba",
    "preshard.packer_service.cli",
    "preshard.packer_service.http.app",
    "pandas",
    "pyarrow.dataset",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "torch.nn.attention.flex_attention",
    "preshard.trainer.setup",
    "transformers",
)
"""Modules that most workers import. None of them starts a thread, which a fork would lose."""

FORKABLE = {"jemalloc_bg_thd"}
"""Threads that begin anew in a fork by themselves: of Arrow's allocator."""

UNREWRITTEN = "ignore:Module already imported:pytest.PytestAssertRewriteWarning"
"""Plugins that modules above import; they have no assertions that tests would show."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("number", type=int)
    parser.add_argument("--beside", metavar="COMMAND", default="true")
    options, arguments = parser.parse_known_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # as tests/conftest.py has it; read when NumPy is imported
    with subprocess.Popen(shlex.split(options.beside)) as beside:
        loops = compiling("compile_loops")
        preload()
        for fork in (loops, compiling("compile_modules")):
            fork.join()  # whatever failed there fails in a test, too, which tells more
    if beside.returncode:
        return beside.returncode
    if hindrance := what_hinders_forks():
        print(f"==> each worker imports for itself: {hindrance}", file=sys.stderr)
        return pytest.main([f"-n{options.number}", *arguments])
    gc.freeze()  # a collection would copy every page that the workers share
    python = f"{sys.executable} -S {Path(__file__).with_name('connect.py')}"
    folder = tempfile.mkdtemp()
    with socket.socket(socket.AF_UNIX) as listener:
        os.environ["PRESHARD_TEST_WORKERS"] = f"{folder}/socket"
        listener.bind(f"{folder}/socket")
        listener.listen()
        workers = [f"--tx={options.number}*popen//python={python}", "-W", UNREWRITTEN]
        status = Workers(listener).run([*workers, *arguments])
    shutil.rmtree(folder)
    return status


def preload() -> None:
    for module in PRELOADED:
        import_module(module)


def what_hinders_forks() -> str | None:
    """Why workers cannot be forks of this process."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError) as error:  # another system than Linux, or an old one
        return f"processes cannot be watched here ({error})"
    others = (task for task in Path("/proc/self/task").iterdir() if task.name != str(os.getpid()))
    started = {(task / "comm").read_text().strip() for task in others} - FORKABLE
    return f"what they would share has started threads {sorted(started)}" if started else None


def compiling(what: str) -> BaseProcess:
    """A fork that does this part of tests/support/compile_ahead.py, which is imported there alone."""

    def work() -> None:
        getattr(import_module("compile_ahead"), what)()

    fork = get_context("fork").Process(target=work)
    fork.start()
    return fork


class Workers:
    """Forks pytest itself, and a worker for each connection until pytest has ended."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()

    def run(self, arguments: Sequence[str]) -> int:
        """Pytest's status. Pytest and its workers leave by SystemExit, each in its own process."""
        pytest_pid = os.fork()
        if not pytest_pid:
            sys.exit(pytest.main([*arguments]))
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # pytest has it as well, and ends its workers
        self._selector.register(self._listener, selectors.EVENT_READ, self._start)
        ended = os.pidfd_open(pytest_pid)
        self._selector.register(ended, selectors.EVENT_READ)
        while True:
            key, _ = self._selector.select()[0]  # one at a time: it may end what others tell of
            if key.fd == ended:
                return os.waitstatus_to_exitcode(os.waitpid(pytest_pid, 0)[1])
            key.data()

    def _start(self) -> None:
        connection, _ = self._listener.accept()
        _, streams, _, _ = socket.recv_fds(connection, 1, 3)
        pid = os.fork()
        if not pid:
            sys.exit(become_worker(streams))
        for stream in streams:
            os.close(stream)
        ended = os.pidfd_open(pid)

        def tell_end() -> None:
            status = os.waitpid(pid, 0)[1]
            with suppress(OSError):  # the Python that waits may have been killed
                connection.send(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
            self._selector.unregister(ended)
            with suppress(KeyError):  # of one that was killed
                self._selector.unregister(connection)
            os.close(ended)
            connection.close()

        def kill() -> None:
            self._selector.unregister(connection)
            signal.pidfd_send_signal(ended, signal.SIGKILL)

        self._selector.register(ended, selectors.EVENT_READ, tell_end)
        self._selector.register(connection, selectors.EVENT_READ, kill)


def become_worker(streams: Sequence[int]) -> int:
    """Does what the Python would have done that xdist wanted to start: run the program that the first line holds."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # without a file, so that processes that multiprocessing starts do not import this one as theirs
    program = sys.modules["__main__"] = ModuleType("__main__")
    exec(eval(sys.stdin.readline()), vars(program))
    return 0


if __name__ == "__main__":
    sys.exit(main())
