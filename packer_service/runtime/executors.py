"""Executors of tasks: the protocol, and one that is a plain loop."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

from preshard.schemas.errors import ConfigError, PreshardError

if TYPE_CHECKING:
    from preshard.packer_service.runtime.proof import Proof

T = TypeVar("T")
R = TypeVar("R")

REASON_CHARACTERS = 300
"""Longest reason of a failure that goes into our one line."""


class TaskError(PreshardError):
    """A task failed for a reason that is not a document's fault: a full disk, an outage, a lost node."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Failure that a task returns from another process in place of an exception, which might not be pickled."""

    reason: str
    traceback: str
    is_config: bool = False
    """Whether the command is wrong, which the reason says alone."""
    node: str = ""
    """The node of a cluster that it ran on."""


def attempt(function: Callable[[T], R], item: T) -> R | Failure:
    """The function's result, or why there is none."""
    try:
        return function(item)
    except ConfigError as error:
        return Failure(str(error), traceback.format_exc(), is_config=True)
    except Exception as error:  # a task can raise anything
        return Failure(f"{type(error).__name__}: {last_line(error)}", traceback.format_exc())


def result_of(found: Any) -> Any:
    """Returns the result of :func:`attempt`, or raises its failure.

    Raises:
        ConfigError: the function raised it.
        TaskError: the function failed otherwise; its traceback is a note of the error.
    """
    if not isinstance(found, Failure):
        return found
    failure: PreshardError
    node = f" on node {found.node}" if found.node else ""
    if found.is_config:
        failure = ConfigError(f"{found.reason} (said by a task{node})" if node else found.reason)
    else:
        failure = TaskError(f"a task failed{node} ({found.reason}); finished work is kept")
    failure.add_note(found.traceback)
    raise failure


def last_line(error: BaseException) -> str:
    """The last line of an error's text, which says why."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:REASON_CHARACTERS] if lines else "no message"


@dataclass(frozen=True, kw_only=True, slots=True)
class TaskCounts:
    """Counts of a task: ``amounts`` by name, and the documents that it rejected by their code."""

    amounts: Mapping[str, int]
    rejects: Mapping[str, int] = field(default_factory=dict)


class Executor(Protocol):
    """Runs a function over items, anywhere and in any order, and yields each result with its item's index."""

    def run(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]: ...


@runtime_checkable
class OnNodes(Protocol):
    """An executor whose tasks run on nodes that may differ from this machine."""

    @property
    def node(self) -> str:
        """The node that the last result came from, as messages name it."""

    def require(self, make_proof: Callable[[], Proof]) -> None:
        """Makes each process of a node prove itself before its first task; ``make_proof`` is called when one starts."""


class MadeItems(Sequence[T]):
    """Items that are each made when they are asked for: a job may have a million tasks.

    Args:
        n_items: how many there are.
        make: gives the item of a number.
    """

    def __init__(self, n_items: int, make: Callable[[int], T]) -> None:
        self._numbers, self._make = range(n_items), make

    def __len__(self) -> int:
        return len(self._numbers)

    def __getitem__(self, number: int) -> T:  # type: ignore[override]  # nobody takes slices
        return self._make(self._numbers[number])


class PlainExecutor:
    """Runs one item after the other, in this process."""

    def run(self, function: Callable[[T], R], items: Sequence[T]) -> Iterator[tuple[int, R]]:
        for index, item in enumerate(items):
            yield index, function(item)
