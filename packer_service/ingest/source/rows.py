"""A source row, as any container gives it, to its identity and its document."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeGuard

import numpy as np

from preshard.packer_service.ingest.document import Document
from preshard.packer_service.ingest.source.forms.detect import Form, find_form, kind_of_value, left_columns, named
from preshard.packer_service.ingest.source.forms.fields import bad, is_text, kept_value, kind_of, shown, without_fields
from preshard.packer_service.ingest.source.forms.fill import unfilled_mark
from preshard.packer_service.ingest.source.forms.messages import TEXTS, loss_weight
from preshard.packer_service.ingest.source.forms.overlooked import overlooked
from preshard.packer_service.ingest.source.forms.tokens import column_values
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError

DEFAULTS = PackConfig()
DEFAULT_SOURCE = "default"
MAX_NAME = 1000
"""Most characters of an id or a source, which tables and heads of samples repeat."""


def row_identity(row: Any, ignored: Collection[str] = (), named: str | None = None) -> tuple[str | None, str]:
    """The ``id`` (None if it has no usable one) and ``source`` of any row at all.

    Args:
        row: what a container gave.
        ignored: fields that are left out.
        named: the source of its file, which goes before its own.
    """
    if not isinstance(row, dict):
        return None, named or DEFAULT_SOURCE
    given_id, source = (None if name in ignored else row.get(name) for name in ("id", "source"))
    given_id = id_text(given_id)
    if named is None:
        named = source if source and _is_name(source) else DEFAULT_SOURCE
    return given_id if given_id and _is_name(given_id) else None, named


def id_text(value: Any) -> Any:
    """A number without a fraction as text, which many files have for an id; any other value as it is."""
    if not isinstance(value, int) or isinstance(value, bool):
        return value
    try:
        return str(value)
    except ValueError:  # thousands of digits, which Python does not write out
        return None


def parse_row(
    row: Any, form: str = "messages", config: PackConfig = DEFAULTS, unread: Collection[str] = ()
) -> Document:
    """Checks a row, and returns its document.

    Null fields count as missing, since Parquet has every field in every row. Fields that the form does not read are the
    user's own, except those whose names say that they hold media or conversation.

    Args:
        row: what a container gave.
        form: name of its form.
        config: which columns are left out, have numbers for tokens or turns, or are kept.
        unread: columns of its file that were left out when the row was read.

    Raises:
        DocumentError: ``bad_row`` with the field, its value and what is legal, or ``empty``.
    """
    if not isinstance(row, dict):
        bad(f"the row is {kind_of(row)}, not an object{_as_rows(row)}")
    given = {key: value for key, value in row.items() if value is not None and key not in config.ignore_columns}
    _check_identity(given)
    if unknown := [name for name in config.ignore_fields if name not in TEXTS]:
        given = without_fields(given, unknown)
    found = find_form(form)
    values = dict[str, np.ndarray]()
    for column in config.columns_of_tokens:
        if column.name in given:
            values[column.name] = column_values(column, given[column.name])
        elif not column.optional:
            bad(f"has no {column.name}; give it, or let rows lack it by the type '{column.dtype} or 0'")
    columns = {name: kind_of_value(value) for name, value in given.items()}
    if reason := overlooked(columns, found, config.columns_read, given):
        bad(reason)
    document = found.parse(given)
    if (mark := _unfilled(document, found)) is not None:
        left = [
            *unused_columns(given, found, config),
            *(name for name in config.ignore_columns if name in row),
            *unread,
        ]
        document = replace(document, unfilled=(mark, *map(named, dict.fromkeys(left))))
    document = document.with_values(values) if values else document
    if config.keep_columns:
        kept = tuple((name, kept_value(kind, given.get(name), name)) for name, kind in config.keep_columns)
        document = replace(document, kept=kept)
    return _weighed(document, given["document_weight"]) if "document_weight" in given else document


def _as_rows(row: Any) -> str:
    """Remedy for a row that is a list: of turns, which are a conversation, or of rows, as Qwen's trainer packs them."""
    if not isinstance(row, list) or not row or not all(isinstance(each, dict) for each in row):
        return ""
    turns = "messages" if "role" in row[0] else "conversations" if "from" in row[0] else None
    program = f"{{{turns}: .}}" if turns else ".[]"
    return f"; if it is {'a conversation' if turns else 'a list of rows'}, write it as jq -c '{program}' does"


def _unfilled(document: Document, form: Form) -> str | None:
    """A placeholder of an image or video in a document that shows none; pre-training text may hold what it likes."""
    if document.text is not None:
        return unfilled_mark(document.text) if form.name == "caption" else None
    parts = [*document.shared, *document.prompt, *(document.interleaved or ())]
    for branch in document.branches:
        for message in branch:
            parts += message.parts
    texts = [part for part in parts if isinstance(part, str)]
    return unfilled_mark("\n".join(texts)) if len(texts) == len(parts) else None


def _weighed(document: Document, value: Any) -> Document:
    """The document with the weight that its row gives it, which tables of text hold as text."""
    with suppress(ValueError):
        value = float(value) if isinstance(value, str) else value
    weight = loss_weight(value, "document_weight")
    if not weight:
        raise DocumentError("empty", "document_weight is 0, so no token would carry loss")
    return replace(document, weight=weight)


def unused_columns(row: dict[str, Any], form: Form, config: PackConfig) -> list[str]:
    """The fields of a row that its form does not read, nor the configuration names."""
    left = left_columns(form.name, tuple((name, kind_of_value(value)) for name, value in row.items()))
    return [name for name in left if name not in config.columns_read and not config.asks_for(name)]


def _check_identity(row: dict[str, Any]) -> None:
    given_id = row.get("id")
    if given_id is not None and not _is_name(id_text(given_id)):
        bad(f"id is {shown_id(given_id)}, not a string of Unicode text of at most {MAX_NAME} characters, or an integer")
    source = row.get("source")
    if source is not None and not _is_name(source):
        bad(f"source is {shown(source)}, not a string of Unicode text of at most {MAX_NAME} characters")


def shown_id(value: Any) -> str:
    try:
        return shown(value)
    except ValueError:  # as in id_text
        return "a number of thousands of digits"


def _is_name(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= MAX_NAME and is_text(value)
