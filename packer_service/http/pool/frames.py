"""Messages between the process that listens and those that read: a JSON object and bytes, with their lengths ahead.

JSON and not pickles: what a process says that has read a hostile file must not run anything here.
"""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any, NamedTuple

_LENGTHS = struct.Struct(">II")

LARGEST_HEAD = 64 << 20
"""Bytes of the JSON object. The list of a thousand datasets with long names and reasons takes a few of them."""

LARGEST_BODY = 1 << 30
"""Bytes of a body; a longer one was written by a process with a broken heap."""


class Frame(NamedTuple):
    """One message."""

    head: dict[str, Any]
    body: bytes = b""


class BrokenFrameError(Exception):
    """What came is no message: the process that wrote it cannot be trusted any more."""


def encode_frame(head: dict[str, Any], body: bytes = b"") -> bytes:
    """A message as bytes."""
    data = json.dumps(head).encode()
    return _LENGTHS.pack(len(data), len(body)) + data + body


async def read_frame(reader: asyncio.StreamReader) -> Frame:
    """The next message.

    Raises:
        EOFError: the other end is closed.
        BrokenFrameError: what came is no message.
    """
    try:
        head_bytes, body_bytes = _LENGTHS.unpack(await reader.readexactly(_LENGTHS.size))
        if head_bytes > LARGEST_HEAD or body_bytes > LARGEST_BODY:
            raise BrokenFrameError("a message is longer than any can be")
        head = json.loads(await reader.readexactly(head_bytes))
        body = await reader.readexactly(body_bytes) if body_bytes else b""
    except (asyncio.IncompleteReadError, ConnectionError):
        raise EOFError("the other end is closed") from None
    except (ValueError, RecursionError):
        raise BrokenFrameError("a message is not JSON") from None
    if not isinstance(head, dict):
        raise BrokenFrameError("a message is not a JSON object")
    return Frame(head, body)
