"""What pydantic found wrong, in words that are the same wherever it is told."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """One thing that is wrong with a value.

    Attributes:
        place: keys and indices that lead to it; empty for the value as a whole.
        message: what is wrong, beginning in lower case.
        value: what was found there.
        is_unknown: the key itself is not known.
        is_own: a validator of ours says so, with the value in its words.
    """

    place: tuple[int | str, ...]
    message: str
    value: Any
    is_unknown: bool
    is_own: bool

    @property
    def path(self) -> str:
        """The place with dots, as users write it."""
        return ".".join(map(str, self.place))

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.place else self.message


def first_fault(error: ValidationError) -> Fault:
    """The first of the faults that a validation found."""
    return faults_of(error.errors())[0]


def faults_of(details: Sequence[Any]) -> list[Fault]:
    """Pydantic's or FastAPI's list of error details as faults, in its order."""
    return [
        Fault(
            place=tuple(detail["loc"]),
            message=_in_lower_case(detail["msg"].removeprefix("Value error, ")),
            value=detail["input"],
            is_unknown=detail["type"] == "extra_forbidden",
            is_own=detail["type"] == "value_error",
        )
        for detail in details
    ]


def _in_lower_case(message: str) -> str:
    """As the second half of a sentence; a name in capitals keeps them."""
    return message if message[:2].isupper() else f"{message[:1].lower()}{message[1:]}"


def nearest_multiples(value: int, step: int) -> str:
    """The positive multiples of ``step`` next to a value, for a message."""
    below = value - value % step
    above = below if below == value else below + step
    return f"{below} and {above}" if 0 < below < above else f"{above}"
