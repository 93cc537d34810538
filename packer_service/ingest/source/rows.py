"""A source row, as JSON or Parquet gives it, to a document."""

from __future__ import annotations

import math
from typing import Any, NoReturn, TypeGuard, get_args

from packer_service.ingest.document import Document, Medium, MediumKind, Message, Part
from schemas.errors import DocumentError

FORMS = ("text", "messages", "annotations")
FIELDS = ("id", "source", *FORMS, "media")
"""The fields of a row that are read; others are the user's own."""
ROLES = ("system", "user", "assistant")
DEFAULT_SOURCE = "default"
MAX_NAME = 1000
"""Most characters of an id or a source, which tables and heads of samples repeat."""
MAX_URI = 8000
"""Most characters of an image's or video's path or URI, which messages repeat."""


def row_identity(row: Any) -> tuple[str | None, str]:
    """The ``id`` (None if it has no usable one) and ``source`` of any row at all."""
    if not isinstance(row, dict):
        return None, DEFAULT_SOURCE
    given_id, source = row.get("id"), row.get("source")
    named = source if source and _is_name(source) else DEFAULT_SOURCE
    return given_id if given_id and _is_name(given_id) else None, named


def parse_document(row: Any) -> Document:
    """Checks a row, and returns its document.

    Null fields count as missing, since Parquet has every field in every row.

    Raises:
        DocumentError: ``bad_row`` with the field, its value and what is legal, or ``empty``.
    """
    if not isinstance(row, dict):
        _bad(f"the row is a {_kind(row)}, not an object")
    row = {key: value for key, value in row.items() if value is not None}
    _check_strings(row)
    forms = [form for form in FORMS if form in row]
    if len(forms) != 1:
        _bad(f"has {' and '.join(forms) or 'none'} of {', '.join(FORMS)}; give exactly one")
    if "media" in row and "annotations" not in row:
        _bad("media is legal only beside annotations; put a conversation's media into its messages")
    if "text" in row:
        return _text(row["text"])
    if "messages" in row:
        return _with_loss(Document(branches=(_messages(row["messages"], "messages"),)))
    annotations = _list(row["annotations"], "annotations")
    shared = tuple(_medium(part, f"media[{i}]") for i, part in enumerate(_list(row.get("media", []), "media")))
    branches = tuple(_messages(given, f"annotations[{i}]") for i, given in enumerate(annotations))
    for i, branch in enumerate(branches):
        if not branch:
            _bad(f"annotations[{i}] has no messages; leave it out")
    return _with_loss(Document(shared=shared, branches=branches, annotated=True))


def _check_strings(row: dict[str, Any]) -> None:
    for field in ("id", "source"):
        value = row.get(field)
        if value is not None and not _is_name(value):
            _bad(f"{field} is {value!r:.80}, not a string of Unicode text of at most {MAX_NAME} characters")


def _is_name(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and len(value) <= MAX_NAME and _is_text(value)


def _text(text: Any) -> Document:
    checked = _string(text, "text")
    if not checked.strip():
        raise DocumentError("empty", "text is empty")
    return Document(text=checked)


def _with_loss(document: Document) -> Document:
    """Refuses a document without any text by an assistant: none of its tokens would carry loss."""
    answers = [m for branch in document.branches for m in branch if m.role == "assistant"]
    if not any(isinstance(part, str) and part.strip() for message in answers for part in message.parts):
        raise DocumentError("empty", "no assistant turn holds any text, so no token would carry loss")
    return document


def _messages(given: Any, where: str) -> tuple[Message, ...]:
    return tuple(_message(message, f"{where}[{i}]") for i, message in enumerate(_list(given, where)))


def _message(given: Any, where: str) -> Message:
    if not isinstance(given, dict):
        _bad(f"{where} is a {_kind(given)}, not an object with role and content")
    role: Any = given.get("role")
    if role not in ROLES:
        _bad(f"{where}.role is {role!r:.80}; legal are {', '.join(ROLES)}")
    content = given.get("content")
    if isinstance(content, str):
        return Message(role=role, parts=(_string(content, f"{where}.content"),))
    given_parts = enumerate(_list(content, f"{where}.content"))
    parts = tuple(_part(part, f"{where}.content[{i}]") for i, part in given_parts)
    return Message(role=role, parts=parts, content_is_list=True)


def _part(given: Any, where: str) -> Part:
    if isinstance(given, dict) and given.get("type") == "text":
        return _string(given.get("text"), f"{where}.text")
    return _medium(given, where)


def _medium(given: Any, where: str) -> Medium:
    if not isinstance(given, dict):
        _bad(f"{where} is a {_kind(given)}, not an object with a type")
    kind: Any = given.get("type")
    if kind not in get_args(MediumKind):
        _bad(f"{where}.type is {kind!r:.80}; legal are text, image, video")
    uri, data = _reference(given, kind, where)
    if kind == "image":
        return Medium(kind="image", uri=uri, data=data)
    start, end = (_seconds(given.get(name), f"{where}.{name}") for name in ("start", "end"))
    return Medium(kind="video", uri=uri, data=data, start=start, end=end)


def _reference(given: dict[str, Any], kind: str, where: str) -> tuple[str | None, bytes | None]:
    """A part's URI or its inline bytes, also in the form ``{"bytes", "path"}`` of Hugging Face image columns."""
    value: Any = given.get(kind)
    inline: Any = given.get("bytes")
    if isinstance(value, dict):
        value, inline = value.get("path"), inline if inline is not None else value.get("bytes")
    if isinstance(value, bytes):
        value, inline = None, value
    if inline is not None:
        if not isinstance(inline, bytes):
            _bad(f"{where}.bytes is a {_kind(inline)}, not bytes")
        return None, inline
    uri = _string(value, f"{where}.{kind}")
    if not uri or "\0" in uri or len(uri) > MAX_URI:
        _bad(f"{where}.{kind} is {uri!r:.80}, not the path or URI of a file, of at most {MAX_URI} characters")
    return uri, None


def _seconds(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        _bad(f"{where} is {value!r:.80}, not a number of seconds")
    return float(value)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number too large for a float
        return False


def _string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        _bad(f"{where} is a {_kind(value)}, not a string")
    if not _is_text(value):
        _bad(f"{where} holds a lone surrogate, which is not Unicode text")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        _bad(f"{where} is a {_kind(value)}, not a list")
    return value


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__


def _bad(message: str) -> NoReturn:
    raise DocumentError("bad_row", message)
