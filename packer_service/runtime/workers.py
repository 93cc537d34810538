"""Calls in a process of their own: a crash, a hang or eaten memory there becomes a reason, not the end of the caller.

Knows nothing of what is called: :mod:`preshard.packer_service.ingest.media.isolated` and
:mod:`preshard.packer_service.ingest.text.chat_text` say what a failure means there.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from preshard.packer_service.runtime.patience import Watchdog
from preshard.packer_service.runtime.process import MAX_ANSWER, start
from preshard.packer_service.runtime.worker_process import Tag
from preshard.schemas.errors import DocumentError

T = TypeVar("T")

OUTSIDE = (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGIO)
"""Signals that a faulty decoder does not raise: somebody ended the process, such as a kernel out of memory."""


INVALID = "gave an invalid answer"


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Bounds of one call; None for no bound. Each value that the call yields starts both times anew.

    The times are not configurable: no intact file that we looked at came near them.
    """

    memory: int | None = 512 << 20
    """Bytes of private memory of the helper process. With the packing process, which holds one pack, below 1 GiB."""

    memory_key: str | None = None
    """The key of the configuration that sets this memory."""

    cpu_seconds: int | None = 120
    """Processor time without a result. Not clock time, by which a good file is slow on a busy or suspended machine."""

    asleep_seconds: int | None = 600
    """Seconds in which the process did nothing, and did not wait for anything that the kernel counts as a disk."""

    tries: int = 2
    """Times that a call is made, each in a new process after a failure, so what ran before cannot be to blame."""

    @property
    def memory_limit(self) -> str:
        """The limit of memory as messages name it."""
        key = f" ({self.memory_key})" if self.memory_key else ""
        return f"{(self.memory or 0) >> 20} MiB{key}"

    @property
    def memory_shown(self) -> str:
        """Memory of a call, as messages name it."""
        return f"its {self.memory_limit} of memory" if self.memory else "the machine's memory"


class CallFailedError(Exception):
    """The call did not come to an end, and the process cannot be used any more. The text says what the call did.

    ``rejection`` is what the function itself said, where it may not have known better.
    """

    def __init__(self, reason: str, rejection: DocumentError | None = None) -> None:
        super().__init__(reason)
        self.rejection = rejection


class KilledError(ChildProcessError):
    """The process was ended from outside, or did not start: an ``OSError``, since no document is to blame."""


class Isolated:
    """Calls functions in a helper process, started with the first call and kept for the next ones.

    One call at a time: other threads wait. The process ends with the caller, however that ends.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._helper: Worker | None = None
        self._lock = threading.Lock()
        self.is_over = False
        """Whether it was stopped, so that no call is tried again."""
        atexit.register(self.close)
        os.register_at_fork(after_in_child=self._forked)

    def call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> list[Any]:
        """The result of a module's function in a list or, if that is an iterator, all of its values in their order.

        A call that breaks the process is tried again in a new one, from the beginning.

        Raises:
            CallFailedError, KilledError, PreshardError, OSError: as in :meth:`gather`.
        """
        return self.gather(list, function, *args, **kwargs)

    def gather(self, keep: Callable[[Iterator[Any]], T], function: Callable[..., Any], *args: Any, **kwargs: Any) -> T:
        """Returns what ``keep`` makes of the values, which it is given one at a time as they come.

        A call that breaks the process is tried again in a new one, and ``keep`` is called again from the beginning. It
        need not take all values; the process is ended then.

        Raises:
            CallFailedError: it broke every process in which it was tried; the text says how.
            KilledError: the process was ended from outside in every try; an ``OSError``.
            PreshardError, OSError: as the function raised it.
        """
        with self._lock:
            reasons: list[str] = []
            while True:
                try:
                    return self._try(keep, function, *args, **kwargs)
                except KilledError:
                    if self.is_over or len(reasons) + 1 >= self.limits.tries:
                        raise
                    reasons.append("was killed")
                except CallFailedError as error:
                    reasons.append(str(error))
                    if self.is_over or len(reasons) >= self.limits.tries:
                        said = ", then ".join(dict.fromkeys(reasons))
                        failed = CallFailedError(f"{said} in {len(reasons)} of {self.limits.tries} tries")
                        raise error.rejection or failed from None

    def _try(self, keep: Callable[[Iterator[Any]], T], function: Callable[..., Any], *args: Any, **kwargs: Any) -> T:
        helper = self._helper = self._helper or Worker(self.limits)
        try:
            if self.is_over:  # stopped while the process started
                raise KilledError("was stopped")
            return keep(helper.call(function, *args, **kwargs))
        finally:
            if self.is_over or not helper.is_idle:
                self._end()

    @property
    def is_asked(self) -> bool:
        """Whether a call waits for an answer."""
        return self._lock.locked()

    @property
    def pid(self) -> int | None:
        """The helper's process id, None while there is no helper."""
        return None if self._helper is None else self._helper.pid

    def stop(self) -> None:
        """Kills the helper while another thread waits for a call, which is not tried again."""
        self.is_over = True
        if (helper := self._helper) is not None:
            helper.kill()

    def close(self) -> None:
        """Ends the helper; a later call starts another one."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.close()

    def _forked(self) -> None:
        # a copy of this process shares the pipes, and would hold the helper's lifeline open
        self._lock = threading.Lock()
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.forget()


class Worker:
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
        """Reason why the process ended."""
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

    def kill(self) -> None:
        """Kills the process; the thread that waits for it finds it ended."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        self._let_go()
        if self._process.returncode is None:
            self._process.kill()
            self._process.wait()

    def forget(self) -> None:
        """Lets go of the process, in a forked copy of the caller, without ending it."""
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
    bounds = limits.memory or 0, limits.cpu_seconds or 0
    try:
        process = start("preshard.packer_service.runtime.worker_process", *theirs, *bounds, descriptors=theirs)
    finally:
        for end in (their_calls, their_answers, their_lifeline):
            end.close()
    return process, calls, answers, lifeline
