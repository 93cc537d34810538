"""One helper process as its caller sees it: started, asked, and asked why it ended."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from preshard.packer_service.isolation.limits import Limits
from preshard.packer_service.isolation.messages import MAX_ANSWER, Tag
from preshard.packer_service.isolation.watchdog import Watchdog
from preshard.schemas.errors import DocumentError

OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGIO)
"""Signals that a faulty decoder does not raise: somebody ended the process, such as a kernel out of memory."""


INVALID = "gave an invalid answer"


class CallFailedError(Exception):
    """The call did not come to an end, and the process cannot be used any more. The text says what the call did.

    ``rejection`` is what the function itself said, where it may not have known better.
    """

    def __init__(self, reason: str, rejection: DocumentError | None = None) -> None:
        super().__init__(reason)
        self.rejection = rejection


class KilledError(ChildProcessError):
    """The process was ended from outside, or did not start: an ``OSError``, since no document is to blame."""


class HelperProcess:
    """A running helper. Only one thread may use it at a time."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._process, self._calls, self._answers, self._lifeline = _start(limits)
        self._watchdog = Watchdog(self._process, limits.asleep_seconds)
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
        """Calls a module's function in the helper. Yields its result or, if that is an iterator, each of its values.

        Raises:
            CallFailedError: it crashed, hung, took too much memory, or raised what nobody foresaw.
            KilledError: the process was ended from outside.
            PreshardError, OSError: as the function raised it.
        """
        request = pickle.dumps((function, args, kwargs))
        self.is_idle = False
        # if nobody reads it, what the helper said last or how it ended is the reason
        with suppress(BrokenPipeError), self._watchdog.awaiting():
            self._calls.send_bytes(request)
        del request
        while True:
            tag, value = self._receive()
            if tag is Tag.VALUE:
                yield value
            elif tag is Tag.END:
                self.is_idle = True
                return
            elif tag is Tag.ERROR:
                self.is_idle = True
                raise value
            elif tag is Tag.NEAR_MEMORY:
                near = f"{value} (its decoder came near its limit of {self.limits.memory_limit} of memory)"
                raise CallFailedError("came near its limit of memory", rejection=DocumentError(value.code, near))
            elif tag is Tag.MEMORY:
                raise CallFailedError(f"needs more than {self.limits.memory_shown}")
            else:
                raise CallFailedError(f"failed ({value})")

    def _receive(self) -> tuple[Tag, Any]:
        try:
            with self._watchdog.awaiting():
                answer = self._answers.recv_bytes(MAX_ANSWER)
        except (EOFError, OSError):
            if self._answers.closed:  # its way of refusing a length above the limit
                raise CallFailedError(INVALID) from None
            raise self._ended() from None
        try:
            tag, value = pickle.loads(answer)
            return Tag(tag), value
        except Exception:  # a damaged process may have written any bytes, and unpickling raises whatever they say
            raise CallFailedError(INVALID) from None

    def _ended(self) -> CallFailedError | KilledError:
        """Why the process ended."""
        with self._watchdog.awaiting():  # it may have closed its pipe and live on
            code = self._process.wait()
        if code >= 0:
            return CallFailedError(f"ended its process (exit status {code})")
        if self._watchdog.has_killed:
            return CallFailedError(f"hung (it slept for {self.limits.asleep_seconds} s)")
        if -code == signal.SIGXCPU:
            return CallFailedError(f"hung (no result in {self.limits.cpu_seconds} s of processor time)")
        name = signal.Signals(-code).name
        if -code in OUTSIDE:
            return KilledError(f"the helper process was ended from outside ({name}); is the machine out of memory?")
        # many libraries do not check whether they were given memory, and these crashes look like any other
        limit = f"; its memory is limited to {self.limits.memory_limit}" if self.limits.memory else ""
        return CallFailedError(f"crashed ({name}{limit})")

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        self._let_go()
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """In a forked copy of the caller: lets go of the process without ending it."""
        self._let_go()
        self._process.returncode = 0

    def _let_go(self) -> None:
        self._watchdog.stop()
        for connection in (self._calls, self._answers, self._lifeline):
            connection.close()


def _start(limits: Limits) -> tuple[subprocess.Popen[bytes], Connection, Connection, Connection]:
    """The process, and our ends of its pipes: calls, answers, lifeline."""
    their_calls, calls = Pipe(duplex=False)
    answers, their_answers = Pipe(duplex=False)
    their_lifeline, lifeline = Pipe(duplex=False)
    theirs = [end.fileno() for end in (their_calls, their_answers, their_lifeline)]
    arguments = map(str, (*theirs, limits.memory or 0, limits.cpu_seconds or 0))
    try:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "preshard.packer_service.isolation.helper", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=theirs,
            env=_environment(),
        )
    finally:
        for end in (their_calls, their_answers, their_lifeline):
            end.close()
    return process, calls, answers, lifeline


def _environment() -> dict[str, str]:
    """Ours, with the modules that we find, and with libraries that keep to one CPU and to the memory that they use."""
    path = os.pathsep.join(str(Path(folder).absolute()) for folder in sys.path)
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    return {**os.environ, **threads, "PYTHONPATH": path, "ARROW_DEFAULT_MEMORY_POOL": "system"}
