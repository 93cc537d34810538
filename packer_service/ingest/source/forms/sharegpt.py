"""The form ``sharegpt`` of ShareGPT and LLaVA: ``conversations`` of ``from`` and ``value``, with columns of media."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from preshard.packer_service.ingest.document import Document, Message
from preshard.packer_service.ingest.source.forms.fields import (
    bad,
    kind_of,
    listed,
    parsed_json,
    shown,
    strict_object,
    string,
)
from preshard.packer_service.ingest.source.forms.fill import MEDIA_COLUMNS, Supply
from preshard.packer_service.ingest.source.forms.form import Form
from preshard.packer_service.ingest.source.forms.messages import message, messages, template_columns, with_loss

SPEAKERS = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
}
"""Whom ``from`` names, and the role that it becomes."""
KEYS = ("from", "value", "weight", "train")
COLUMNS = ("conversations", "system", "tools", *MEDIA_COLUMNS)


def _fits(columns: Collection[str]) -> bool:
    return "conversations" in columns


def _parse(row: dict[str, Any]) -> Document:
    if "conversations" not in row:
        bad("has no conversations")
    given = listed(parsed_json(row["conversations"], "conversations"), "conversations")
    if given and isinstance(given[0], dict) and "role" in given[0]:
        turns = messages(given, "conversations")  # Hugging Face's keys under ShareGPT's name
    else:
        turns = tuple(_turn(value, f"conversations[{i}]") for i, value in enumerate(given))
    if "system" in row and (text := string(row["system"], "system")):
        turns = (Message(role="system", parts=(text,)), *turns)
    supply = Supply.of(row)
    filled = supply.into_messages(turns, "conversations")
    supply.finish()
    return with_loss(Document(branches=(filled,), **template_columns({k: row[k] for k in ("tools",) if k in row})))


def _turn(value: Any, where: str) -> Message:
    given = strict_object(value, where, KEYS, "from and value")
    speaker = given.get("from")
    if not isinstance(speaker, str) or speaker not in SPEAKERS:
        bad(f"{where}.from is {shown(speaker)}; legal are {', '.join(SPEAKERS)}")
    text = string(given.get("value"), f"{where}.value")
    turn: dict[str, Any] = {key: given[key] for key in ("weight", "train") if key in given}
    turn["role"] = SPEAKERS[speaker]
    if speaker == "function_call":
        turn["tool_calls"] = _calls(text, f"{where}.value")
    else:
        turn["content"] = text
    return message(turn, where)


def _calls(text: str, where: str) -> list[dict[str, Any]]:
    """A function call as LLaMA-Factory writes it, the JSON of one call or of several, in the form of a message."""
    found = parsed_json(text, where)
    calls = found if isinstance(found, list) else [found]
    for call in calls:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            bad(f"{where} is {shown(text)} ({kind_of(found)}), not the JSON of a call with name and arguments")
        strict_object(call, where, ("name", "arguments"), "name and arguments")
    return [{"type": "function", "function": call} for call in calls]


FORM = Form(
    name="sharegpt",
    title="ShareGPT / LLaVA conversations",
    columns=frozenset(COLUMNS),
    fits=_fits,
    parse=_parse,
)
