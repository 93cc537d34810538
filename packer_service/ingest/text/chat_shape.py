"""A conversation in the shape that its template takes: contents as text or lists, arguments as text or objects."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from preshard.packer_service.ingest.text.chat_render import takes, takes_arguments
from preshard.packer_service.ingest.text.chat_template import ChatTemplate, Conversation, Turn
from preshard.schemas.errors import DocumentError


def in_shape(template: ChatTemplate, chat: Conversation) -> Conversation:
    """A conversation with contents of text alone as strings or lists of parts, whichever the template takes.

    Arguments of calls are text or objects likewise.

    Raises:
        DocumentError: ``bad_row``: arguments that have to be an object are text that is not the JSON of one.
    """
    turns = (_turn_in_shape(template, turn) for turn in chat.turns)
    return replace(chat, turns=tuple(_calls_in_shape(template, turn, i) for i, turn in enumerate(turns, start=1)))


def _turn_in_shape(template: ChatTemplate, turn: Turn) -> Turn:
    content = turn.get("content")
    if content is None:
        return turn
    strings, lists = takes(template, turn["role"])
    if isinstance(content, str):
        return {**turn, "content": [{"type": "text", "text": content}]} if lists and not strings else turn
    if strings and not lists and all(part["type"] == "text" for part in content):
        return {**turn, "content": "".join(part["text"] for part in content)}
    return turn


def _calls_in_shape(template: ChatTemplate, turn: Turn, number: int) -> Turn:
    if not turn.get("tool_calls"):
        return turn
    strings, objects = takes_arguments(template)

    def shaped(holder: Turn) -> Turn:
        given = holder.get("arguments")
        if isinstance(given, str) and objects and not strings:
            return {**holder, "arguments": _object(given, number)}
        if isinstance(given, dict) and strings and not objects:
            return {**holder, "arguments": json.dumps(given, ensure_ascii=False)}
        return holder

    calls = [
        {**call, "function": shaped(call["function"])} if isinstance(call.get("function"), dict) else shaped(call)
        for call in turn["tool_calls"]
    ]
    return {**turn, "tool_calls": calls}


def _object(text: str, number: int) -> dict[str, Any]:
    """Arguments that a row has as JSON text, as OpenAI's answers do; no text stands for none."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise DocumentError(
            "bad_row",
            f"turn {number}: arguments of tool_calls are {text[:80]!r}, and the chat template takes an object; "
            "give one, or its JSON",
        )
    return found
