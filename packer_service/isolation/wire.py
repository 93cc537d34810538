"""Messages over a pipe: a tag, a length, a payload."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from enum import IntEnum

HEADER = struct.Struct("<BQ")
MAX_ANSWER = 1 << 30
"""Bytes of the longest answer that is believed; a longer one is what a process with a broken heap wrote."""


class Tag(IntEnum):
    """What a message is."""

    CALL = 1
    """To the helper: a pickled function, its arguments and its keyword arguments."""
    READY = 2
    """The helper has started."""
    VALUE = 3
    """A pickled value: the function's result, or one of those that it yields."""
    END = 4
    """No more values."""
    ERROR = 5
    """A pickled exception that the caller shall see."""
    FAILED = 6
    """The name of an exception that nobody foresaw."""
    MEMORY = 7
    """The memory was not enough."""
    NEAR_MEMORY = 8
    """A pickled ``DocumentError`` of a call that may have had too little memory."""


def send(fd: int, tag: Tag, payload: bytes = b"") -> None:
    """Writes a whole message.

    Raises:
        BrokenPipeError: nobody reads any more.
    """
    _write(fd, HEADER.pack(tag, len(payload)))
    _write(fd, payload)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def receive(fd: int, *, wait: Callable[[], None] = lambda: None, most: int | None = None) -> tuple[Tag, bytearray]:
    """Reads a whole message.

    Args:
        fd: a pipe's reading end.
        wait: called before each read; returns when there is something, or raises.
        most: bytes of the longest payload that is read.

    Raises:
        EOFError: the other side is gone.
        ValueError: what came is no message.
    """
    number, size = HEADER.unpack(_read(fd, HEADER.size, wait))
    tag = Tag(number)
    if most is not None and size > most:
        raise ValueError(f"a message of {size} bytes is above the limit of {most}")
    return tag, _read(fd, size, wait)


def _read(fd: int, size: int, wait: Callable[[], None]) -> bytearray:
    data = bytearray(size)
    view = memoryview(data)
    while view:
        wait()
        n = os.readv(fd, [view])
        if not n:
            raise EOFError("the other end of the pipe is closed")
        view = view[n:]
    return data
