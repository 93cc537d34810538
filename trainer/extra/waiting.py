"""Words for what a run does while nothing is printed, said on rank 0 from before torch is loaded."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from preshard.waiting import Waiting, with_home

__all__ = ["begin", "doing", "end", "with_home"]

_line: list[Waiting] = []


def begin(what: str) -> None:
    """Says from now on, on rank 0, what the command does; a process that runs it as a function says nothing."""
    if os.environ.get("RANK", "0") == "0" and not _line:
        _line.append(Waiting(what))
        sys.excepthook = partial(_without_trace, sys.excepthook)


def _without_trace(otherwise: Callable[..., Any], kind: type[BaseException], *error: Any) -> None:
    """Says of an interrupt only that it was one: where the command was when the user pressed Ctrl+C is no news."""
    if issubclass(kind, KeyboardInterrupt):
        print("interrupted", file=sys.stderr)
    else:
        otherwise(kind, *error)


def doing(what: str) -> None:
    """Says that this is done now."""
    for line in _line:
        line.doing(what)


def end() -> None:
    """Leaves the terminal as it was."""
    while _line:
        _line.pop().close()
