"""A conversation as its template writes it, with the places of what the model is trained to write."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from preshard.packer_service.ingest.text.chat_render import render_turns, takes
from preshard.packer_service.ingest.text.chat_spans import answer_spans
from preshard.packer_service.ingest.text.chat_template import ChatTemplate, ChatText, Conversation, Span, Turn
from preshard.schemas.errors import DocumentError

ANSWERS_REMEDY = "put {% generation %} around what an assistant writes in a copy of it, and name that as chat_template"


def chat_text(template: ChatTemplate, chat: Conversation) -> ChatText:
    """Renders a conversation, and finds what in it carries loss.

    Where the template has ``{% generation %}``, that is what stands inside. Elsewhere it is what an assistant's turn
    has after the prompt for it (``add_generation_prompt``), to the end of the turn.

    Raises:
        DocumentError: ``bad_row``: the template cannot write the conversation, leaves some of it out, or writes a turn
            so that its place is unknown; ``too_long``.
    """
    chat = _in_shape(template, chat)
    whole = render_turns(template, chat, chat.turns)
    _refuse_what_is_left_out(template, chat, whole.text)
    if template.marks_answers:
        without = [i for i, turn in enumerate(chat.turns) if turn["role"] == "assistant" and not chat.has_loss[i]]
        silent = _answers(template, chat, whole.text, without, "leave its weight out")
        spans = [
            (start, end)
            for start, end in whole.generated
            if all(end <= first or start >= last for first, last in silent)
        ]
    else:
        with_loss = [number for number, has in enumerate(chat.has_loss) if has]
        spans = _answers(template, chat, whole.text, with_loss, ANSWERS_REMEDY)
    return ChatText(text=whole.text, loss=_joined(spans), marked=template.marks_answers)


def _in_shape(template: ChatTemplate, chat: Conversation) -> Conversation:
    """Contents of text alone as strings or as lists of parts, whichever the template takes."""
    return replace(chat, turns=tuple(_turn_in_shape(template, turn) for turn in chat.turns))


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


def _answers(template: ChatTemplate, chat: Conversation, whole: str, numbers: list[int], remedy: str) -> list[Span]:
    """The characters of turns of the assistant."""
    found = answer_spans(template, chat, whole, numbers)
    for number in numbers:
        if number not in found:
            raise DocumentError(
                "bad_row",
                f"turn {number + 1}: the chat template writes it differently once later turns follow, or not as it "
                f"asks for an answer, so where this answer lies is unknown; {remedy}",
            )
    return [found[number] for number in numbers]


def _refuse_what_is_left_out(template: ChatTemplate, chat: Conversation, whole: str) -> None:
    """Refuses a conversation of which the template drops a turn's text or its tool calls, as not all know all roles."""
    for number, turn in enumerate(chat.turns):
        shown = all(text in whole for text in _texts(turn.get("content")))
        if not shown and _same(template, chat, number, None, whole):
            _left_out(number, f"the {turn['role']}'s turn")
        if turn.get("tool_calls"):
            bare = {key: value for key, value in turn.items() if key != "tool_calls"}
            if _same(template, chat, number, bare, whole):
                _left_out(number, "tool_calls")


def _same(template: ChatTemplate, chat: Conversation, number: int, other: Turn | None, whole: str) -> bool:
    """Whether the text stays the same with another turn in place of one, or with none."""
    between = () if other is None else (other,)
    try:
        text = render_turns(template, chat, (*chat.turns[:number], *between, *chat.turns[number + 1 :])).text
    except DocumentError:
        return False
    return text == whole


def _left_out(number: int, what: str) -> None:
    raise DocumentError(
        "bad_row", f"turn {number + 1}: the chat template leaves out {what}; name one that writes it as chat_template"
    )


def _texts(content: Any) -> list[str]:
    """The texts of a content, without the white space that templates strip."""
    parts = [content] if isinstance(content, str) else [part.get("text") or "" for part in content or ()]
    return [text.strip() for text in parts]


def _joined(spans: list[Span]) -> tuple[Span, ...]:
    """Spans in ascending order, and one where they touch."""
    joined: list[Span] = []
    for start, end in sorted(spans):
        if joined and start <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(end, joined[-1][1])
        else:
            joined.append((start, end))
    return tuple(span for span in joined if span[0] < span[1])
