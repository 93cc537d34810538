"""What a form of rows is: the columns that it reads, and how it makes a document of them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from preshard.packer_service.ingest.document import Document

IDENTITY = ("id", "source")
"""Columns that every form has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """One way in which people write documents as rows.

    ``columns`` are all that it can read beside ``id`` and ``source``; None is every column. ``fits`` says from the
    columns of a file whether it has this form, and ``parse`` makes a document of a row without its null fields, or
    raises ``DocumentError``.
    """

    name: str
    title: str
    columns: frozenset[str] | None
    fits: Callable[[Collection[str]], bool]
    parse: Callable[[dict[str, Any]], Document]

    def reads(self, column: str) -> bool:
        return self.columns is None or column in self.columns or column in IDENTITY
