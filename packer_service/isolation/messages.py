"""What the helper process answers: each message is a pickled pair of a tag and a value."""

from __future__ import annotations

from enum import IntEnum

MAX_ANSWER = 1 << 30
"""Bytes of the longest answer that is read; a longer one was written by a process with a broken heap."""


class Tag(IntEnum):
    """What an answer is, and what its value is."""

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
    """There was not enough memory: None."""
    NEAR_MEMORY = 7
    """The ``DocumentError`` of a call that may have had too little memory."""
