"""Words for what a run does while nothing is printed, said on rank 0 from before torch is loaded."""

from __future__ import annotations

import os

from preshard.waiting import Waiting

_line: list[Waiting] = []


def begin(what: str) -> None:
    """Says from now on, on rank 0, what the command does; a process that runs it as a function says nothing."""
    if os.environ.get("RANK", "0") == "0" and not _line:
        _line.append(Waiting(what))


def doing(what: str) -> None:
    """Says that this is done now."""
    for line in _line:
        line.doing(what)


def end() -> None:
    """Leaves the terminal as it was."""
    while _line:
        _line.pop().close()
