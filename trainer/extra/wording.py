"""Wording of an option that is missing or not legal."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import ValidationError

from preshard.schemas.files.validation import first_violation
from preshard.schemas.worded import legal_instead


def problem_of(error: ValidationError, option: Callable[[str], str]) -> str:
    """The first problem of a configuration, with a remedy.

    Args:
        error: of the configuration.
        option: gives the option of a field.
    """
    found = first_violation(error)
    if not found.place:
        return found.message
    name = option(str(found.place[0]))
    if found.is_missing:
        return f"{name} is missing: add {name} {name.removeprefix('--').upper()}"
    return f"{name} is {found.value}; {found.message if found.is_own else legal_instead(error)}"
