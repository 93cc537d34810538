"""What long work tells of itself."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told what is being done."""

    def note(self, message: str) -> None: ...

    def step(self, what: str, done: int, total: int) -> None: ...
