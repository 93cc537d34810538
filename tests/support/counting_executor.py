"""An executor for tests that ask how much work there was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from preshard.packer_service.runtime.executors import PlainExecutor


class Counting(PlainExecutor):
    """Counts the tasks that it is given."""

    def __init__(self) -> None:
        self.tasks: Counter[str] = Counter()

    def run(self, function: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        self.tasks[function.func.__name__] += len(items)  # type: ignore[attr-defined]
        yield from super().run(function, items)
