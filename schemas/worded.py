"""Wording of what is legal in place of a wrong value, as remedies that can be typed."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any

from pydantic import ValidationError

from preshard.schemas.files.validation import violations_of

_SHOULD = {
    "int": "give a whole number",
    "float": "give a number",
    "finite": "give a finite number",
    "bool": "give true or false",
    "string": "give text",
    "tuple": "give a list, such as [1, 2]",
    "list": "give a list, such as [1, 2]",
    "dict": "give a section, such as {key: value}",
    "model": "give a section, such as {key: value}",
}
"""Remedies by the first word of pydantic's kind of error."""
_BOUNDS = {
    "greater_than": "give more than {gt}",
    "greater_than_equal": "give at least {ge}",
    "less_than": "give less than {lt}",
    "less_than_equal": "give at most {le}",
}


def legal_instead(error: ValidationError) -> str:
    """A remedy for the first wrong value, as the second half of a line: what may be given, and what was meant."""
    [detail, *_] = error.errors()
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    if kind in _BOUNDS:
        return _BOUNDS[kind].format(**context)
    if kind == "literal_error":
        legal = re.findall(r"'([^']*)'", context["expected"])
        return f"take {context['expected']}{meant(value, legal)}"
    if kind.endswith(("_type", "_parsing", "_from_float", "_number")) and kind.partition("_")[0] in _SHOULD:
        return _SHOULD[kind.partition("_")[0]] + _plain_number(value)
    return violations_of([detail])[0].message


def meant(value: Any, legal: Sequence[str]) -> str:
    """``; did you mean X?`` where a legal word comes near a wrong one, else nothing."""
    near = nearest(value, legal)
    return f"; did you mean {near}?" if near is not None else ""


def nearest(value: Any, legal: Sequence[str]) -> str | None:
    """The legal word that a wrong one comes near; None if none does."""
    return next(iter(get_close_matches(str(value).lower(), legal, 1, 0.7)), None)


def _plain_number(value: Any) -> str:
    """The number that a text with separators, or with a K for thousands, may stand for."""
    text = value.strip() if isinstance(value, str) else ""
    if re.fullmatch(r"\d{1,3}(?:[,'_ ]\d{3})+", text):
        return f", {re.sub(r'[^0-9]', '', text)} without separators"
    if thousands := re.fullmatch(r"(\d{1,9})[kK]", text):
        return f", such as {int(thousands[1]) * 1024}"
    return ""
