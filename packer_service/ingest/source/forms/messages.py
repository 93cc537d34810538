"""Turns in the form of Hugging Face and OpenAI: ``role``, ``content``, tool calls, and which turns carry loss."""

from __future__ import annotations

from typing import Any, get_args

from preshard.packer_service.ingest.document import LEAST_WEIGHT, MOST_WEIGHT, Document, Message, Part, Role
from preshard.packer_service.ingest.source.forms.fields import (
    bad,
    json_text,
    kind_of,
    listed,
    parsed_json,
    shown,
    strict_object,
    string,
)
from preshard.packer_service.ingest.source.forms.media import medium
from preshard.schemas.errors import DocumentError

ROLES = get_args(Role)
TEXTS = ("tool_call_id", "name", "reasoning_content", "reasoning", "thinking")
LOSS = ("weight", "train")
KEYS = ("role", "content", "tool_calls", *TEXTS, *LOSS)
"""Keys of a message that are read; ``tool_calls`` and ``TEXTS`` go to the chat template as they are."""
ONLY_OF = {
    "tool_calls": "assistant",
    "tool_call_id": "tool",
    **dict.fromkeys(("reasoning_content", "reasoning", "thinking"), "assistant"),
}
"""Keys that only turns of one role have."""
TEMPLATE_COLUMNS = ("tools", "documents", "chat_template_kwargs")
"""Columns beside a conversation that its chat template gets."""


def messages(given: Any, where: str) -> tuple[Message, ...]:
    """A list of turns.

    Raises:
        DocumentError: ``bad_row``.
    """
    return tuple(message(turn, f"{where}[{i}]") for i, turn in enumerate(listed(given, where)))


def message(value: Any, where: str) -> Message:
    """One turn.

    Raises:
        DocumentError: ``bad_row``.
    """
    given = strict_object(value, where, KEYS, "role and content")
    role: Any = given.get("role")
    if role not in ROLES:
        bad(f"{where}.role is {shown(role)}; legal are {', '.join(ROLES)}")
    weight = _weight(given, role, where)
    fields = _fields(given, role, where)
    content = given.get("content")
    if content is None and any(name == "tool_calls" for name, _ in fields):
        return Message(role=role, parts=(), content_is_null=True, weight=weight, fields=fields)
    if isinstance(content, str):
        return Message(role=role, parts=(string(content, f"{where}.content"),), weight=weight, fields=fields)
    if not isinstance(content, list):
        legal = "a string or a list of parts; null is legal beside tool_calls"
        bad(f"{where}.content is {kind_of(content)}, not {legal}")
    parts = tuple(_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))
    return Message(role=role, parts=parts, content_is_list=True, weight=weight, fields=fields)


def _part(given: Any, where: str) -> Part:
    if isinstance(given, dict) and given.get("type") == "text":
        part = strict_object(given, where, ("type", "text"), "a type")
        return string(part.get("text"), f"{where}.text")
    return medium(given, where)


def _fields(given: dict[str, Any], role: Role, where: str) -> tuple[tuple[str, str], ...]:
    """Fields that the chat template gets besides the content, as JSON text."""
    fields = []
    for name in ("tool_calls", *TEXTS):
        value = given.get(name)
        if value is None or value == []:  # Parquet and some writers give every turn an empty list
            continue
        if ONLY_OF.get(name, role) != role:
            if value == "":  # others an empty text
                continue
            bad(f"{where}.{name} stands in a turn of {role}; only turns of {ONLY_OF[name]} have it")
        if name == "tool_calls":
            _check_calls(value, f"{where}.tool_calls")
        else:
            string(value, f"{where}.{name}")
        fields.append((name, json_text(value, f"{where}.{name}")))
    return tuple(fields)


def _check_calls(value: Any, where: str) -> None:
    for i, call in enumerate(listed(value, where)):
        if not isinstance(call, dict):
            bad(f"{where}[{i}] is {kind_of(call)}, not an object with a function")


def _weight(given: dict[str, Any], role: Role, where: str) -> float:
    """Loss weight of a turn of the assistant: ``weight`` as in OpenAI's fine-tuning, or ``train``."""
    present = [name for name in LOSS if name in given]
    if not present:
        return 1.0
    if len(present) > 1:
        bad(f"{where} has weight and train; give one of them")
    [name] = present
    value = given[name]
    if name == "train" and value not in (0, 1):
        bad(f"{where}.{name} is {shown(value)}; legal are true and false")
    weight = loss_weight(value, f"{where}.{name}")
    if weight and role != "assistant":
        bad(f"{where}.{name} is {shown(value)} in a turn of {role}; only turns of assistant can carry loss")
    return weight


def loss_weight(value: Any, where: str) -> float:
    """Loss weight that a row gives a turn or a document.

    Raises:
        DocumentError: ``bad_row``.
    """
    if not isinstance(value, int | float) or not (value == 0 or LEAST_WEIGHT <= value <= MOST_WEIGHT):
        bad(f"{where} is {shown(value)}; legal are 0 and numbers from {LEAST_WEIGHT:g} to {MOST_WEIGHT:,.0f}")
    return float(value)


def template_columns(row: dict[str, Any]) -> dict[str, Any]:
    """Values that a row gives its chat template beside the messages, as JSON text, by the names of ``Document``.

    Raises:
        DocumentError: ``bad_row``.
    """
    kinds: dict[str, type] = {"tools": list, "documents": list, "chat_template_kwargs": dict}
    found: dict[str, Any] = {}
    for name, kind in kinds.items():
        value = parsed_json(row[name], name) if name in row else None
        if value is None or value in ([], {}):
            continue
        if not isinstance(value, kind):
            bad(f"{name} is {kind_of(value)}, not a {'list' if kind is list else 'mapping'}")
        found[name.removeprefix("chat_")] = json_text(value, name)
    return found


def with_loss(document: Document) -> Document:
    """The document, which has a token to learn.

    Raises:
        DocumentError: ``empty``: no turn that carries loss has any text, so no token would.
    """
    learnt = [turn for branch in document.branches for turn in branch if turn.loss]
    if not any(_says_something(turn) for turn in learnt):
        raise DocumentError("empty", "no assistant turn that carries loss holds any text, so no token would carry loss")
    return document


def _says_something(turn: Message) -> bool:
    if any(name in ONLY_OF for name, _ in turn.fields):
        return True
    return any(isinstance(part, str) and part.strip() for part in turn.parts)
