"""Changes of one place in a nested structure, as expressions: for tables of datasets that are broken on purpose."""

from __future__ import annotations

from typing import Any


def put(into: Any, at: Any, value: Any) -> None:
    """Sets what lies at a key, index or slice."""
    into[at] = value


def add(into: Any, at: Any, more: Any) -> None:
    """Adds to what lies there."""
    into[at] = into[at] + more


def drop(into: Any, *places: Any) -> None:
    """Takes away what lies there."""
    for at in places:
        del into[at]
