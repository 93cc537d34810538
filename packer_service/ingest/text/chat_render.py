"""A chat template, rendered by ``transformers`` itself: the same sandbox, globals and treatment of messages."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from preshard.packer_service.ingest.text.chat_template import ChatTemplate, Conversation, Turn
from preshard.schemas.errors import ConfigError, DocumentError

MAX_CHARACTERS = 2**25
"""Most characters of a rendered conversation: eight for each of the most tokens that a document may have."""

NO_DATE = (
    "{% macro strftime_now(format) %}{{ raise_exception("
    "'it writes the date of the day, which would make every run different; give the date in chat_template_kwargs, "
    "or set it in a copy of the template') }}{% endmacro %}\n"
)
"""Stands before a template that may ask for the date. Jinja drops the line break, so the text stays what it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendered:
    """A rendered text, and the half-open ranges of characters that ``{% generation %}`` stands around."""

    text: str
    generated: tuple[tuple[int, int], ...] = ()


def render_turns(
    template: ChatTemplate, chat: Conversation, turns: tuple[Turn, ...], *, prompt: bool = False
) -> Rendered:
    """The text of some turns of a conversation.

    Args:
        template: the template.
        chat: the conversation, for its tools, documents and variables.
        turns: the turns to render.
        prompt: whether the beginning of an assistant's turn follows (``add_generation_prompt``).

    Raises:
        DocumentError: ``bad_row``: the template refuses the conversation, or fails; ``too_long``.
    """
    from transformers.utils.chat_template_utils import render_jinja_template

    variables = {**json.loads(template.special_tokens), **json.loads(chat.variables or "{}")}
    tracks = template.marks_answers and not prompt
    try:
        [text], generated = render_jinja_template(
            conversations=[list(turns)],
            tools=_loaded(chat.tools),
            documents=_loaded(chat.documents),
            chat_template=_dateless(template.source),
            return_assistant_tokens_mask=tracks,
            add_generation_prompt=prompt,
            **variables,
        )
    except MemoryError:
        raise
    except Exception as error:  # whatever a template does; RecursionError is one of them
        raise DocumentError("bad_row", f"the chat template cannot write it: {_line(error)}") from None
    if len(text) > MAX_CHARACTERS:
        raise DocumentError(
            "too_long", f"the chat template writes {len(text)} characters, more than the limit of {MAX_CHARACTERS}"
        )
    return Rendered(text=text, generated=tuple(map(tuple, generated[0])) if tracks else ())


def check_template(template: ChatTemplate) -> None:
    """Checks the syntax of a chat template before any row is read.

    Raises:
        ConfigError: its syntax is wrong.
    """
    from jinja2 import TemplateSyntaxError
    from transformers.utils.chat_template_utils import render_jinja_template

    try:  # no conversation: the template is compiled and not run
        render_jinja_template(conversations=[], chat_template=_dateless(template.source))
    except TemplateSyntaxError as error:
        line = (error.lineno or 1) - _dateless(template.source).count("\n") + template.source.count("\n")
        raise ConfigError(f"chat_template: line {line}: {_line(error)}") from None


SENTINEL = "preshard"
BEFORE: dict[str, tuple[Turn, ...]] = {
    "system": (),
    "developer": (),
    "user": (),
    "assistant": ({"role": "user", "content": "q"},),
    "tool": (
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "id": "a1b2c3d4e", "function": {"name": "f", "arguments": {}}}],
        },
    ),
}
"""Turns before the one whose content is tried out, so that a template which checks their order takes it."""


@lru_cache(maxsize=64)
def takes(template: ChatTemplate, role: str) -> tuple[bool, bool]:
    """Whether the template writes a content that is a string, and one that is a list of parts, of this role's turns.

    Found by trying both, as the same text must come out: templates written for text alone print a list as Python does,
    and those that go through a list take a string letter by letter. Serving engines read it from the template's syntax.
    """
    return _writes(template, role, SENTINEL), _writes(template, role, [{"type": "text", "text": SENTINEL}])


@lru_cache(maxsize=64)
def takes_arguments(template: ChatTemplate) -> tuple[bool, bool]:
    """Whether the template writes arguments of calls that are JSON text, and arguments that are an object.

    Found by trying both: a template that turns them into JSON would escape a text, one that joins them would fail on an
    object or print it as Python does.
    """
    text = _with_arguments(template, json.dumps({SENTINEL: "v"}))
    strings = f'"{SENTINEL}"' in text and f'\\"{SENTINEL}' not in text
    text = _with_arguments(template, {SENTINEL: "v"})
    return strings, f"'{SENTINEL}': 'v'" not in text


def _with_arguments(template: ChatTemplate, arguments: str | Turn) -> str:
    """Text that a template writes for a call, or an object as Python prints it where the template fails."""
    user, call = BEFORE["tool"]
    called = {**call["tool_calls"][0], "function": {"name": "f", "arguments": arguments}}
    turns = (user, {**call, "tool_calls": [called]})
    try:
        return render_turns(template, Conversation(turns=turns, weights=(0.0, 0.0)), turns).text
    except DocumentError:
        return str({SENTINEL: "v"})


def _writes(template: ChatTemplate, role: str, content: str | list[Turn]) -> bool:
    before = tuple({**turn, "content": _like(turn["content"], content)} for turn in BEFORE[role])
    extra = {"tool_call_id": "a1b2c3d4e", "name": "f"} if role == "tool" else {}
    after = ({"role": "user", "content": _like("q", content)},) if role in ("system", "developer") else ()
    turns = (*before, {"role": role, "content": content, **extra}, *after)
    try:
        text = render_turns(template, Conversation(turns=turns, weights=(0.0,) * len(turns)), turns).text
    except DocumentError:
        return False
    return SENTINEL in text and "'type': 'text'" not in text and '"type": "text"' not in text


def _like(text: str, content: str | list[Turn]) -> str | list[Turn]:
    return text if isinstance(content, str) else [{"type": "text", "text": text}]


def _dateless(source: str) -> str:
    return NO_DATE + source if "strftime_now" in source else source


def _loaded(value: str | None) -> Any:
    return None if value is None else json.loads(value)


def _line(error: Exception) -> str:
    """One line of an exception that a template or its engine raised."""
    text = " ".join(str(error).split())[:300]
    name = type(error).__name__
    return f"{name}: {text}" if name not in ("TemplateError", "TemplateSyntaxError") else text or name


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
