"""A row as scanning a file of bytes finds it."""

from __future__ import annotations

from typing import Any, NamedTuple


class Found(NamedTuple):
    """A row, or why it cannot be read, and its place in bytes. A blank line ``is_row`` not, but is counted."""

    offset: int
    size: int
    row: Any
    is_row: bool = True
