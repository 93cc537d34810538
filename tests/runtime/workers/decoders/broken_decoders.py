"""Stand-ins for decoders on hostile files, without any decoder. Called in the helper process, by their names.

Nothing heavy is imported here, since the tests start some hundred helpers.
"""

from __future__ import annotations

import ctypes
import os
import signal
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from preshard.schemas.errors import DocumentError


def aborts(*_: Any, **__: Any) -> None:
    os.abort()


def segfaults(*_: Any, **__: Any) -> None:
    ctypes.string_at(0)


def loops_in_c(*_: Any, **__: Any) -> None:
    """Loops without giving any other Python thread a turn."""
    sum(iter(int, 1))


def sleeps(*_: Any, **__: Any) -> None:
    time.sleep(1000)


def eats(*_: Any, **__: Any) -> None:
    held = []
    while True:
        held.append(b"x" * (1 << 20))


def eats_at_once(*_: Any, **__: Any) -> None:
    bytearray(1 << 40)


def eats_and_calls_it_damage(*_: Any, **__: Any) -> None:
    try:
        bytearray(1 << 40)
    except MemoryError as error:
        raise DocumentError("decode_failed", "its pixels cannot be decoded (MemoryError)") from error


def eats_and_knows_nothing(*_: Any, **__: Any) -> None:
    """Ends as decoders do that call it damage when they get no memory."""
    held = []
    while True:
        try:
            held.append(b"x" * (1 << 20))
        except MemoryError:
            break
    del held
    raise DocumentError("decode_failed", "clip.mp4: frame 7 cannot be decoded")


def rejects_below_the_limit(*_: Any, **__: Any) -> None:
    bytearray(40 << 20)
    raise DocumentError("decode_failed", "clip.mp4: frame 7 cannot be decoded")


def eats_most(*_: Any, **__: Any) -> int:
    return len(b"x" * (120 << 20))


def eats_and_crashes(*_: Any, **__: Any) -> None:
    """Crashes as a library does that does not look at what malloc gave."""
    held = []
    try:
        while True:
            held.append(b"x" * (1 << 20))
    except MemoryError:
        ctypes.string_at(0)


def exits(*_: Any, **__: Any) -> None:
    sys.exit(3)


def exits_at_once(*_: Any, **__: Any) -> None:
    os._exit(0)


def raises(*_: Any, **__: Any) -> None:
    raise IndexError("a fault of a library")


def raises_eof(*_: Any, **__: Any) -> None:
    raise EOFError


def _write_to_pipes(data: bytes) -> None:
    for entry in sorted(Path("/proc/self/fd").iterdir(), key=lambda entry: int(entry.name))[3:]:
        try:
            os.write(int(entry.name), data)
        except OSError:
            continue


def stalls_in_the_middle(*_: Any, **__: Any) -> None:
    """Begins an answer of 1,000 bytes and does not go on with it."""
    _write_to_pipes(struct.pack("!i", 1000) + b"\x80")
    time.sleep(1000)


def claims_too_much(*_: Any, **__: Any) -> None:
    """Begins an answer of 2 GiB and does not go on with it."""
    _write_to_pipes(struct.pack("!iQ", -1, 2 << 30))
    time.sleep(1000)


def crashes_in_the_middle(*_: Any, **__: Any) -> None:
    """Begins an answer of 1,000 bytes and crashes."""
    _write_to_pipes(struct.pack("!i", 1000) + b"\x80")
    os.abort()


def closes_its_pipes(*_: Any, **__: Any) -> None:
    """Closes everything that is open, and lives on."""
    os.closerange(3, 256)
    time.sleep(1000)


def writes_everywhere(*_: Any, **__: Any) -> None:
    """Garbage into every pipe that is open."""
    _write_to_pipes(b"\xff" * 64)
    os._exit(0)


def killed(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def finds_no_file(*_: Any, **__: Any) -> None:
    raise FileNotFoundError(2, "No such file or directory", "clip.mp4")


def times_out(*_: Any, **__: Any) -> None:
    raise TimeoutError("the object store did not answer")


def rejects(*_: Any, **__: Any) -> None:
    raise DocumentError("bad_image", "photo.png: the file is cut short")


def prints(*_: Any, **__: Any) -> str:
    print("garbage on the standard output")
    os.write(1, b"\xff" * 100_000)
    sys.stdin.read()
    return "good"


def counts(n: int) -> Iterator[int]:
    yield from range(n)


def counts_slowly(n: int, seconds: float) -> Iterator[int]:
    """Takes processor time for each value."""
    for i in range(n):
        until = time.process_time() + seconds
        while time.process_time() < until:
            pass
        yield i


def crashes_once(marker: str, n: int) -> Iterator[int]:
    """Crashes in its first process, after half of its values."""
    for i in range(n):
        if i == n // 2 and not Path(marker).exists():
            Path(marker).touch()
            os.abort()
        yield i


def pid_of(*_: Any, **__: Any) -> int:
    return os.getpid()
