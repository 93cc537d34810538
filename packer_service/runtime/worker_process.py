"""A worker, run with ``python -m``: confines itself, then answers calls one by one. Imports next to nothing.

Each answer is a pickled pair of a tag and a value.
"""

from __future__ import annotations

import errno
import gc
import os
import pickle
import resource
import sys
import traceback
from collections.abc import Iterator
from contextlib import suppress
from enum import IntEnum
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from preshard.packer_service.runtime.process import confine, end_with_pipe
from preshard.schemas.errors import DocumentError, PreshardError

NEAR_MEMORY = 0.75
"""Share of the memory limit from which on a decoder's verdict may be due to the limit."""


class Tag(IntEnum):
    """Kind of an answer, and of its value."""

    READY = 1
    """The helper has started: None."""
    VALUE = 2
    """The function's result, or one of the values that it yields."""
    END = 3
    """No more values: None."""
    ERROR = 4
    """An exception that the caller is to see."""
    FAILED = 5
    """The name of an exception that nobody foresaw."""
    MEMORY = 6
    """Lack of memory: None."""
    NEAR_MEMORY = 7
    """The ``DocumentError`` of a call that may have had too little memory."""


def main(calls: int, answers: int, lifeline: int, memory: int, cpu_seconds: int) -> None:
    """Answers calls until no more can come.

    Args:
        calls: descriptor of the pipe from which calls are read.
        answers: descriptor of the pipe to which answers are written.
        lifeline: descriptor of a pipe that nobody writes to, and that closes with the calling process.
        memory: bytes, as of :class:`preshard.packer_service.runtime.workers.Limits`; 0 for no bound.
        cpu_seconds: as of the same.
    """
    confine(memory)
    end_with_pipe(lifeline)
    incoming, outgoing = Connection(calls, writable=False), Connection(answers, readable=False)
    try:
        _send(outgoing, Tag.READY)
        while True:
            _answer(incoming, outgoing, memory, cpu_seconds)
    except (EOFError, BrokenPipeError):  # the caller has ended, or wants no more
        os._exit(0)


def _send(answers: Connection, tag: Tag, value: Any = None) -> None:
    answers.send_bytes(pickle.dumps((int(tag), value)))


def _answer(calls: Connection, answers: Connection, memory: int, cpu_seconds: int) -> None:
    try:
        forget_peak()
        _allow(cpu_seconds)
        for value in _values(calls):
            _send(answers, Tag.VALUE, value)
            del value
            # PyAV's decoded frames can refer to themselves in a circle. Python counts such objects, not their bytes,
            # and would keep hundreds.
            gc.collect()
            _allow(cpu_seconds)
        tag, last = Tag.END, None
    except _CallerGoneError:
        raise EOFError from None
    except Exception as error:  # a decoder can raise anything; the caller decides what it means
        tag, last = _failure(error, memory)
    _send(answers, tag, last)
    if tag not in (Tag.END, Tag.ERROR):  # in an unknown state, and a call may be half read
        os._exit(0)


class _CallerGoneError(Exception):
    """No more calls will come. A type of its own, since a decoder can raise an EOFError."""


def _values(calls: Connection) -> Iterator[Any]:
    try:
        request = calls.recv_bytes()
    except EOFError:
        raise _CallerGoneError from None
    try:
        function, args, kwargs = pickle.loads(request)
    except Exception as error:  # unpickling imports the function's module, which can raise anything
        raise _CannotCallError(f"{type(error).__name__}: {error}") from error
    del request  # inline media would lie in memory twice
    gc.collect()
    gc.freeze()  # the modules: collecting what a call leaves takes microseconds then, not milliseconds
    result = function(*args, **kwargs)
    del args, kwargs
    if isinstance(result, Iterator):
        yield from result
    else:
        yield result


class _CannotCallError(PreshardError):
    """The function or its arguments do not exist here: a fault of the installation, not of a document."""


def _allow(cpu_seconds: int) -> None:
    """Grants this processor time from now on, after which the kernel ends the process by SIGXCPU; 0 for no bound."""
    if not cpu_seconds:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime) + 1 + cpu_seconds
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def _failure(error: Exception, memory: int) -> tuple[Tag, Any]:
    if _is_memory(error):
        return Tag.MEMORY, None
    if isinstance(error, _CannotCallError):
        return Tag.ERROR, PreshardError(f"the helper process cannot make the call ({error})")
    if memory and isinstance(error, DocumentError) and peak() > memory * NEAR_MEMORY:
        return Tag.NEAR_MEMORY, error  # many decoders call a file damaged when they are given no memory
    if isinstance(error, PreshardError | OSError):
        return Tag.ERROR, _picklable(error)
    traceback.print_exception(error)
    return Tag.FAILED, type(error).__name__


def _is_memory(error: BaseException | None) -> bool:
    """Whether there was not enough memory, even where a decoder took that for a damaged file."""
    while error is not None:
        if isinstance(error, MemoryError) or getattr(error, "errno", None) == errno.ENOMEM:
            return True
        error = error.__cause__ or error.__context__
    return False


def _picklable(error: PreshardError | OSError) -> PreshardError | OSError:
    error.__traceback__ = None
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # a library's own OSError, which cannot be made again from its arguments
        number = getattr(error, "errno", None)
        return OSError(number, str(error)) if number is not None else OSError(str(error))
    return error


def peak() -> int:
    """Most bytes in memory since :func:`forget_peak`; 0 where the system does not say.

    ``getrusage`` would begin with what the parent process held.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


def forget_peak() -> None:
    """Starts measuring anew; where the system cannot, the peak is that of the process's whole life."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
