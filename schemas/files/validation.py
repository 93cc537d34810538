"""Faults that pydantic finds in a value, worded once for all who report it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError


@dataclass(frozen=True, kw_only=True, slots=True)
class Violation:
    """One constraint that a value breaks.

    Attributes:
        place: keys and indices that lead to the value; empty for the value as a whole.
        message: what is wrong, beginning in lower case.
        value: what was found there.
        is_unknown_key: the key itself is not one of the model's.
        is_missing: there is no value.
        is_own: the message comes from a validator of ours, which names the value and what is legal.
    """

    place: tuple[int | str, ...]
    message: str
    value: Any
    is_unknown_key: bool
    is_missing: bool
    is_own: bool

    @property
    def path(self) -> str:
        """The place with dots, as users write it."""
        return ".".join(map(str, self.place))

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.place else self.message


def first_violation(error: ValidationError) -> Violation:
    """The first violation that a validation found."""
    return violations_of(error.errors())[0]


def violations_of(details: Sequence[Any]) -> list[Violation]:
    """The error details of pydantic or FastAPI as violations, in their order."""
    return [
        Violation(
            place=tuple(detail["loc"]),
            message=_in_lower_case(detail["msg"].removeprefix("Value error, ")),
            value=detail["input"],
            is_unknown_key=detail["type"] == "extra_forbidden",
            is_missing=detail["type"] == "missing",
            is_own=detail["type"] == "value_error",
        )
        for detail in details
    ]


def _in_lower_case(message: str) -> str:
    """The message as the second half of a sentence. One that begins with an acronym keeps its capitals."""
    return message if message[:2].isupper() else f"{message[:1].lower()}{message[1:]}"
