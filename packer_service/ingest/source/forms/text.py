"""The form ``text``: pre-training text, under the names that corpora give it."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from preshard.packer_service.ingest.document import Document
from preshard.packer_service.ingest.source.forms.fields import bad, string
from preshard.packer_service.ingest.source.forms.form import Form
from preshard.schemas.errors import DocumentError

NAMES = ("text", "content", "raw_content", "contents", "body", "txt")
"""Names of the text's column, the usual one first: RedPajama has ``raw_content``, collections of code ``content``."""


def text_document(value: Any, where: str) -> Document:
    """A document of one text.

    Raises:
        DocumentError: ``bad_row`` or ``empty``.
    """
    checked = string(value, where)
    if not checked.strip():
        raise DocumentError("empty", f"{where} is empty")
    return Document(text=checked)


def _fits(columns: Collection[str]) -> bool:
    # Behind rows of ``text`` there may be conversations, which the form ``messages`` reads as well.
    return "text" not in columns and sum(name in columns for name in NAMES) == 1


def _parse(row: dict[str, Any]) -> Document:
    present = [name for name in NAMES if name in row]
    if len(present) != 1:
        bad(f"has {' and '.join(present) or 'none'} of {', '.join(NAMES)}; give exactly one")
    return text_document(row[present[0]], present[0])


FORM = Form(name="text", title="text", columns=frozenset(NAMES), fits=_fits, parse=_parse)
