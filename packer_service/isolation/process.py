"""One helper process as its caller sees it: started, asked, and told apart how it ended."""

from __future__ import annotations

import os
import pickle
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from packer_service.isolation.limits import Limits
from packer_service.isolation.wire import MAX_ANSWER, Tag, receive, send
from schemas.errors import DocumentError

OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGIO)
"""Signals that no decoder raises by a fault of its own: somebody ended the process, such as a kernel out of memory."""


class CallFailedError(Exception):
    """The call came to no end, and the process cannot be used any more. The text says what the call did.

    ``rejection`` is what the function itself said, where it may not have known better.
    """

    def __init__(self, reason: str, rejection: DocumentError | None = None) -> None:
        super().__init__(reason)
        self.rejection = rejection


class KilledError(ChildProcessError):
    """The process was ended from outside, or did not start: an ``OSError``, since no document is to blame."""


class HelperProcess:
    """A running helper. Not for several threads at once."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._process, self._calls, self._answers, self._lifeline = _start(limits)
        self._poll = select.poll()
        self._poll.register(self._answers, select.POLLIN)
        self.is_idle = False
        """Whether the next call can be made: the last one came to its end."""
        try:
            self._receive()
        except CallFailedError as error:
            self.close()
            raise KilledError(f"the helper process did not start: it {error}") from None
        self.is_idle = True

    @property
    def pid(self) -> int:
        return self._process.pid

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Iterator[Any]:
        """Calls a function of a module over there. Yields its result, or, of an iterator, each of its values.

        Raises:
            CallFailedError: it crashed, hung, took too much memory, or raised what nobody foresaw.
            KilledError: the process was ended from outside.
            PreshardError, OSError: as the function raised it.
        """
        request = pickle.dumps((function, args, kwargs))
        self.is_idle = False
        with suppress(BrokenPipeError):  # what it said last, or how it ended, is to be read
            send(self._calls, Tag.CALL, request)
        del request
        while True:
            tag, payload = self._receive()
            if tag is Tag.VALUE:
                yield _unpickled(payload)
            elif tag is Tag.END:
                self.is_idle = True
                return
            elif tag is Tag.ERROR:
                error = _unpickled(payload)
                self.is_idle = True
                raise error
            elif tag is Tag.NEAR_MEMORY:
                raise CallFailedError("came near its limit of memory", rejection=_unpickled(payload))
            elif tag is Tag.MEMORY:
                raise CallFailedError(f"needs more than its {_mib(self.limits.memory)} of memory")
            else:
                raise CallFailedError(f"failed ({payload.decode(errors='replace')})")

    def _receive(self) -> tuple[Tag, bytearray]:
        try:
            return receive(self._answers, wait=self._wait, most=MAX_ANSWER)
        except EOFError:
            raise self._ended() from None
        except ValueError:
            raise CallFailedError("gave an answer that is none") from None

    def _wait(self) -> None:
        """Until there is something to read.

        Raises:
            CallFailedError: the process slept for too long.
        """
        asleep, before = 0, None
        while not self._poll.poll(1000):
            now = _activity(self.pid)
            # Counted in looks, not by the clock, which goes on while this process is stopped.
            asleep = asleep + 1 if now == before and now[0] == "S" else 0
            before = now
            if asleep >= self.limits.asleep_seconds:
                raise CallFailedError(f"hung (it slept for {asleep} s)")

    def _ended(self) -> CallFailedError | KilledError:
        """Why the process ended."""
        self._process.wait()
        code = self._process.returncode
        if code >= 0:
            return CallFailedError(f"ended its process (exit status {code})")
        if -code == signal.SIGXCPU:
            return CallFailedError(f"hung (no result in {self.limits.cpu_seconds} s of processor time)")
        name = signal.Signals(-code).name
        if -code in OUTSIDE:
            return KilledError(f"the helper process was ended from outside ({name}); is the machine out of memory?")
        # Many libraries do not look whether they were given memory, and nothing tells these crashes from others.
        return CallFailedError(f"crashed ({name}; its memory is limited to {_mib(self.limits.memory)})")

    def close(self) -> None:
        """Ends the process, whatever it does."""
        for fd in (self._calls, self._answers, self._lifeline):
            os.close(fd)
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """In a forked copy of the caller: lets go of the process without ending it."""
        for fd in (self._calls, self._answers, self._lifeline):
            os.close(fd)
        self._process.returncode = 0


def _start(limits: Limits) -> tuple[subprocess.Popen[bytes], int, int, int]:
    """The process, and our ends of its pipes: calls, answers, lifeline."""
    their_calls, calls = os.pipe()
    answers, their_answers = os.pipe()
    their_lifeline, lifeline = os.pipe()
    theirs = (their_calls, their_answers, their_lifeline)
    arguments = map(str, (*theirs, limits.memory, limits.cpu_seconds))
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "packer_service.isolation.helper", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=theirs,
            env=_environment(),
        )
    except BaseException:
        for fd in (calls, answers, lifeline):
            os.close(fd)
        raise
    finally:
        for fd in theirs:
            os.close(fd)
    return process, calls, answers, lifeline


def _environment() -> dict[str, str]:
    """Ours, with the modules that we find, and with libraries that keep to one CPU and to the memory that they use."""
    path = os.pathsep.join(str(Path(folder).absolute()) for folder in sys.path)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": path, "ARROW_DEFAULT_MEMORY_POOL": "system"}


def _activity(pid: int) -> tuple[str, ...]:
    """State of the process (``S`` sleeps, ``D`` waits for a disk) and the processor time that it has used."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # no Linux: all that is known is that nothing came
        return ("S",)
    return fields[0], fields[11], fields[12]


def _unpickled(payload: bytearray) -> Any:
    try:
        return pickle.loads(payload)
    except Exception:
        raise CallFailedError("gave an answer that is none") from None


def _mib(size: int) -> str:
    return f"{size >> 20} MiB"
