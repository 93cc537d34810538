"""The helper process: ``python -m packer_service.isolation.helper``. Confines itself, then answers calls one by one."""

from __future__ import annotations

import errno
import fcntl
import gc
import os
import pickle
import resource
import select
import signal
import sys
import traceback
from collections.abc import Iterator
from typing import Any

from packer_service.isolation.peak import forget_peak, peak
from packer_service.isolation.wire import Tag, receive, send
from schemas.errors import DocumentError, PreshardError


def main(calls: int, answers: int, lifeline: int, memory: int, cpu_seconds: int) -> None:
    """Answers calls until no more can come.

    Args:
        calls: the pipe from which calls are read.
        answers: the pipe to which answers are written.
        lifeline: a pipe that nobody writes to, and that closes with the calling process.
        memory: bytes, as of :class:`packer_service.isolation.limits.Limits`.
        cpu_seconds: as of the same.
    """
    _confine(lifeline, memory)
    try:
        send(answers, Tag.READY)
        while True:
            _answer(calls, answers, memory, cpu_seconds)
    except (EOFError, BrokenPipeError):  # the caller is gone, or wants no more
        os._exit(0)


def _confine(lifeline: int, memory: int) -> None:
    # The caller's signals are its own: an interrupt at the terminal reaches both processes, and the caller decides.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for default in (signal.SIGIO, signal.SIGXCPU, signal.SIGTERM):
        signal.signal(default, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # Not the address space: shared libraries and what an allocator only reserves take no memory.
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    _end_with(lifeline)


def _end_with(lifeline: int) -> None:
    """Ends this process when the pipe closes, whatever runs then: the kernel's SIGIO ends a process by default.

    A thread that waits could be kept from running by the decoder; the kernel's death signal (PR_SET_PDEATHSIG) comes
    when the caller's thread ends, not its process.
    """
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
    ready, _, _ = select.select([lifeline], [], [], 0)
    if ready:  # closed before the signal was asked for
        os._exit(0)


def _answer(calls: int, answers: int, memory: int, cpu_seconds: int) -> None:
    try:
        forget_peak()
        _allow(cpu_seconds)
        for value in _values(calls):
            send(answers, Tag.VALUE, pickle.dumps(value))
            del value
            # Decoded frames of PyAV can refer to themselves in a circle. Python counts such objects, not their bytes,
            # and would keep hundreds.
            gc.collect()
            _allow(cpu_seconds)
        end = Tag.END, b""
    except _CallerGoneError:
        raise EOFError from None
    except Exception as error:
        end = _failure(error, memory)
    send(answers, *end)
    if end[0] not in (Tag.END, Tag.ERROR):  # in no known state, and a call may be half read
        os._exit(0)


class _CallerGoneError(Exception):
    """No more calls come. Of a type of its own, since a decoder can raise an EOFError."""


def _values(calls: int) -> Iterator[Any]:
    try:
        _, payload = receive(calls)
    except EOFError:
        raise _CallerGoneError from None
    try:
        function, args, kwargs = pickle.loads(payload)
    except Exception as error:
        raise _NoCallError(f"{type(error).__name__}: {error}") from error
    del payload  # inline media would lie in memory twice
    gc.collect()
    gc.freeze()  # the modules: collecting what a call leaves takes microseconds then, not milliseconds
    result = function(*args, **kwargs)
    del args, kwargs
    if isinstance(result, Iterator):
        yield from result
    else:
        yield result


class _NoCallError(PreshardError):
    """The function or its arguments do not exist here: the installation's fault, no document's."""


def _allow(cpu_seconds: int) -> None:
    """From now on; the kernel ends the process by SIGXCPU when it has used them up."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + 1 + cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def _failure(error: Exception, memory: int) -> tuple[Tag, bytes]:
    if _is_memory(error):
        return Tag.MEMORY, b""
    if isinstance(error, _NoCallError):
        return Tag.ERROR, pickle.dumps(PreshardError(f"the helper process cannot make the call ({error})"))
    if isinstance(error, DocumentError) and peak() > memory * 3 // 4:
        # Many decoders call it damage when they are given no memory.
        near = f"{error} (its decoder came near its limit of {memory >> 20} MiB of memory)"
        return Tag.NEAR_MEMORY, pickle.dumps(DocumentError(error.code, near))
    if isinstance(error, PreshardError | OSError):
        return Tag.ERROR, _pickled(error)
    traceback.print_exception(error)
    return Tag.FAILED, type(error).__name__.encode()


def _is_memory(error: BaseException | None) -> bool:
    """Whether the memory was not enough, also where a decoder took that for a damaged file."""
    while error is not None:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            return True
        error = error.__cause__ or error.__context__
    return False


def _pickled(error: PreshardError | OSError) -> bytes:
    error.__traceback__ = None
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # a library's own OSError, which cannot be made again from its arguments
        number = getattr(error, "errno", None)
        data = pickle.dumps(OSError(number, str(error)) if number is not None else OSError(str(error)))
    return data


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
