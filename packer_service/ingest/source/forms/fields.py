"""Checks of single values of a row. What is wrong is named by its place, with the value and what is legal."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection
from contextlib import suppress
from decimal import Decimal
from typing import Any, NoReturn

from preshard.packer_service.ingest.document import SHOWN_CHARACTERS
from preshard.packer_service.ingest.shell import set_option
from preshard.schemas.errors import DocumentError
from preshard.schemas.header import Kept
from preshard.schemas.sections import CONTENT_FIELDS


def bad(message: str) -> NoReturn:
    """Rejects the row.

    Raises:
        DocumentError: always, as ``bad_row``.
    """
    raise DocumentError("bad_row", message)


def shown(value: Any) -> str:
    """A value of the row as a message repeats it."""
    return repr(value)[:SHOWN_CHARACTERS]


_KINDS = {
    type(None): "null",
    bool: "a boolean",
    int: "a number",
    float: "a number",
    str: "a string",
    list: "a list",
    dict: "an object",
    bytes: "bytes",
}


def kind_of(value: Any) -> str:
    """The type of a value in the words of JSON, with an article, as messages name it."""
    return _KINDS.get(type(value)) or f"a {type(value).__name__}"


def is_text(value: str) -> bool:
    """Whether a string is Unicode text: JSON can spell lone surrogates, which no encoding has."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def string(value: Any, where: str) -> str:
    if not isinstance(value, str):
        remedy = "; a form of your own (--form package.module:function) can take one of its texts"
        bad(f"{where} is {kind_of(value)}, not a string{remedy if _is_column_of_texts(value, where) else ''}")
    if not is_text(value):
        bad(f"{where} holds a lone surrogate, which is not Unicode text")
    return value


def _is_column_of_texts(value: Any, where: str) -> bool:
    return where.isidentifier() and isinstance(value, list) and all(isinstance(each, str) for each in value)


def listed(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        bad(f"{where} is {kind_of(value)}, not a list")
    return value


TURNS = ("messages", "conversations", "annotations", "prompt", "completion", "chosen", "rejected", "texts")
"""Columns that hold turns."""
_OF_A_TURN = re.compile(rf"({'|'.join(TURNS)})(\[[0-9]+\])+(\.content\[[0-9]+\])?")
"""Places of turns and of their parts."""
_OF_MEDIA = re.compile("(?i)image|img|picture|photo|video|frame|clip|audio|sound|tool|call")
"""Names of fields of which no message proposes to leave them out."""


def without_fields(row: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The row whose turns, and their parts, lack some fields."""
    return {**row, **{name: _bare(row[name], names) for name in TURNS if name in row}}


def _bare(value: Any, names: Collection[str]) -> Any:
    if isinstance(value, str) and value.lstrip().startswith("["):  # which may spell turns
        with suppress(ValueError, RecursionError):
            return _bare(json.loads(value), names)
    if isinstance(value, list):
        return [_bare(each, names) for each in value]
    if not isinstance(value, dict):
        return value
    left = {key: field for key, field in value.items() if key not in names}
    return {**left, "content": _bare(left["content"], names)} if "content" in left else left


EMPTY: tuple[Any, ...] = ("", [], {})
"""Values that say nothing."""


def strict_object(value: Any, where: str, known: Collection[str], what: str) -> dict[str, Any]:
    """An object without its null fields: Parquet has every field in every row.

    An unknown key with an empty value leaves nothing out: OpenAI's library writes ``annotations: []`` in every answer.

    Args:
        value: what the row holds.
        where: its place.
        known: the keys that are read; any other one is refused, so that nothing is left out in silence.
        what: what the object should hold, for the message.
    """
    if not isinstance(value, dict):
        bad(f"{where} is {kind_of(value)}, not an object with {what}")
    given = {key: field for key, field in value.items() if field is not None}
    unknown = next((key for key, field in given.items() if key not in known and field not in EMPTY), None)
    if unknown is not None:
        key = unknown if str(unknown).isidentifier() else json.dumps(str(unknown))
        can_be = _OF_A_TURN.fullmatch(where) and unknown not in CONTENT_FIELDS and not _OF_MEDIA.search(key)
        leave_out = f"; {set_option(f'ignore_fields=[{key}]')} leaves it out" if can_be else ""
        bad(f"{where} has the unknown key {shown(unknown)}; known are {', '.join(known)}{leave_out}")
    return given


def number(value: Any, where: str, what: str) -> float:
    """A finite number, but no boolean."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_finite(value):
        bad(f"{where} is {shown(value)}, not {what}")
    return float(value)


MAX_KEPT = 8_000
"""Most characters of a text that documents keep: heads of samples and tables repeat it."""
_BOOLS = {"true": True, "false": False, "1": True, "0": False}


def kept_value(kind: str, value: Any, where: str) -> Kept:
    """A value that a document keeps, of a type of ``keep_columns``. Numbers may be spelled as text, as in CSV.

    Raises:
        DocumentError: ``bad_row``: it is of another type.
    """
    if value is None or (kind == "float" and isinstance(value, float) and math.isnan(value)):
        return None  # as pandas writes what is missing
    if kind == "string":
        if len(string(value, where)) > MAX_KEPT:
            bad(f"{where} has {len(value)} characters; documents keep at most {MAX_KEPT}")
        return str(value)
    try:
        if kind == "bool" and (isinstance(value, bool) or str(value).lower() in _BOOLS):
            return value if isinstance(value, bool) else _BOOLS[str(value).lower()]
        if kind == "int" and not isinstance(value, bool) and (whole := _whole(value)) is not None:
            return whole
        if kind == "float" and not isinstance(value, bool) and math.isfinite(float(value)):
            return float(value)
    except (ArithmeticError, TypeError, ValueError):
        pass
    bad(f"{where} is {shown(value)}; keep_columns asks for {kind}: mend the value, or change the type")


def _whole(value: Any) -> int | None:
    """An integer of 64 bits, exactly: a float in between would round those above 2^53."""
    if isinstance(value, str):
        value = Decimal(value.strip())
    return int(value) if -(2**63) <= value < 2**63 and value == int(value) else None


def whole_number(value: Any, where: str, most: int) -> int:
    """A number from 1 to ``most`` without a fraction, which tables may give as a float."""
    legal = f"a whole number from 1 to {most}"
    found = number(value, where, legal)
    if not 1 <= found <= most or found != int(found):
        bad(f"{where} is {shown(value)}, not {legal}")
    return int(found)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number too large for a float
        return False


def json_text(value: Any, where: str) -> str:
    """A value of a row as JSON text, for a chat template."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        bad(f"{where} holds a value that JSON cannot represent")
    return string(text, where)


def parsed_json(value: Any, where: str) -> Any:
    """A value, or what a string spells in JSON: tables keep nested values as text, since a column has one type."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        is_python = value.lstrip("[{ ").startswith("'")
        remedy = " but how Python prints a value; write it by json.dumps" if is_python else ""
        bad(f"{where} is {shown(value)}, which is not JSON{remedy}")


def json_or_text(value: Any, where: str) -> Any:
    """A value of a column of paths: what a string spells in JSON, or the string, since a path may begin with ``[``."""
    if not isinstance(value, str) or not value.lstrip().startswith(("[", "{")):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        if value.rstrip().endswith(("]", "}")):
            bad(f'{where} is {shown(value)}, which is not JSON; write a list as \'["a.jpg", "b.jpg"]\'')
        return value
