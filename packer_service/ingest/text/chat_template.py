"""A chat template and what it is given. :mod:`preshard.packer_service.ingest.text.chat_render` renders it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from preshard.packer_service.ingest.document import Document, Medium, Message
from preshard.packer_service.ingest.shell import set_option
from preshard.schemas.errors import DocumentError

GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
COMMENT = re.compile(r"\{#.*?#\}", re.DOTALL)

RESERVED = frozenset(
    (
        *("messages", "tools", "documents", "add_generation_prompt", "chat_template", "conversations"),
        *("continue_final_message", "return_assistant_tokens_mask", "strftime_now"),
    )
)
"""Names that a row's own variables may not have: they are what the packer itself gives the template."""

Span = tuple[int, int]
"""Characters of a text: the first, and the one behind the last."""
LossSpan = tuple[int, int, float]
"""The same, with what the loss of each token in it counts."""

Turn = dict[str, Any]
"""One message as a template sees it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatTemplate:
    """A template's source, with the tokenizer's special tokens by their names in it, as JSON text.

    ``tokens`` are those besides the vocabulary, special or not: a text is never cut inside of one.
    """

    source: str
    special_tokens: str = "{}"
    tokens: tuple[str, ...] = ()

    @property
    def sha256(self) -> str:
        """Hash of the source alone; the special tokens are the tokenizer's."""
        return hashlib.sha256(self.source.encode()).hexdigest()

    @property
    def marks_answers(self) -> bool:
        """Whether the template itself says what an assistant writes, by ``{% generation %}``."""
        return GENERATION.search(COMMENT.sub("", self.source)) is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Conversation:
    """Input of a template: messages and, as JSON text, what the row has besides them.

    ``weights`` says what the loss of each message counts, 0 where the model is not trained to write it. Where
    ``prompt_turns`` is given, all that follows so many turns is learnt.
    """

    turns: tuple[Turn, ...]
    weights: tuple[float, ...]
    prompt_turns: int | None = None
    tools: str | None = None
    documents: str | None = None
    variables: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatText:
    """A rendered conversation.

    ``loss`` are the ranges of characters that carry loss, ascending and apart, each with what it counts. ``marked``
    says that the template's own ``{% generation %}`` gave them.
    """

    text: str
    loss: tuple[LossSpan, ...]
    marked: bool


Shown = Sequence[Turn]
"""The parts of a content that stand for one image or video: ``{"type": "image"}``, or a frame's time and its image."""


def conversation(document: Document, number: int, shown: Sequence[Shown]) -> Conversation:
    """One branch of a document, which is its only one or one annotation.

    The media that annotations share stand at the start of the first turn by a user, or are a turn of their own where an
    assistant begins.

    Args:
        document: the document.
        number: of the branch, from 0.
        shown: what stands for each image and video that the branch shows, shared ones first, in order.

    Raises:
        DocumentError: ``bad_row``: the row gives the template a variable that has another meaning, or an annotation
            shows an image or video before the shared ones.
    """
    _check_variables(document.template_kwargs)
    waiting = iter(shown)
    shared = [part for _ in document.shared for part in next(waiting)]
    branch = document.branches[number]
    turns = [_turn(message, waiting) for message in branch]
    weights = [message.loss for message in branch]
    if shared:
        first = next((i for i, message in enumerate(branch) if message.role not in ("system", "developer")), len(turns))
        if any(isinstance(part, Medium) for message in branch[:first] for part in message.parts):
            raise DocumentError(
                "bad_row", f"annotations[{number}] shows an image or video before the shared ones; put it after them"
            )
        if first < len(turns) and branch[first].role == "user":
            turns[first] = {**turns[first], "content": [*shared, *_as_parts(turns[first].get("content"))]}
        else:
            turns.insert(first, {"role": "user", "content": shared})
            weights.insert(first, 0.0)
    return Conversation(
        turns=tuple(turns),
        weights=tuple(weights),
        prompt_turns=None if document.prompt_turns is None else document.prompt_turns % len(turns),
        tools=document.tools,
        documents=document.documents,
        variables=document.template_kwargs,
    )


def _turn(message: Message, shown: Iterator[Shown]) -> Turn:
    fields = {name: json.loads(value) for name, value in message.fields}
    # transformers leaves keys out that are null, since many templates would write "None"
    turn: Turn = {"role": message.role, **{name: value for name, value in fields.items() if value is not None}}
    if message.content_is_null:
        return turn
    parts: list[Turn] = []
    for part in message.parts:
        parts += next(shown) if isinstance(part, Medium) else [{"type": "text", "text": part}]
    as_list = message.content_is_list or any(isinstance(part, Medium) for part in message.parts)
    return {**turn, "content": parts if as_list else "".join(part["text"] for part in parts)}


def _as_parts(content: str | list[Turn] | None) -> list[Turn]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return content or []


def _check_variables(variables: str | None) -> None:
    taken = RESERVED.intersection(json.loads(variables or "{}"))
    if taken:
        raise DocumentError(
            "bad_row", f"chat_template_kwargs holds {sorted(taken)[0]!r}, which the packer itself gives the template"
        )


def refuse_special_text(document: Document, spelled: re.Pattern[str] | None) -> None:
    """Refuses text that spells a special token: in a rendered conversation it would become that token.

    Args:
        document: the document.
        spelled: matches what no text may spell; None if there is nothing.

    Raises:
        DocumentError: ``bad_row`` with the place and the token.
    """
    if spelled is None:
        return
    for where, text in _all_text(document):
        if found := spelled.search(text):
            allow = set_option(f"special_tokens.in_text=[{json.dumps(found.group())}]")
            raise DocumentError(
                "bad_row",
                f"{where} spells the special token {found.group()!r}, which would become that token in the rendered "
                f"text; write it another way, or {allow} takes it for the token",
            )


def _all_text(document: Document) -> Iterator[tuple[str, str]]:
    for name in ("tools", "documents", "template_kwargs"):
        yield from ((name, value) for value in _values(getattr(document, name)))
    for where, parts in (("prompt", document.prompt), ("the text", document.interleaved or ())):
        yield where, _runs(parts)
    for branch, messages in enumerate(document.branches):
        for number, message in enumerate(messages):
            where = f"annotations[{branch}][{number}]" if document.annotated else f"messages[{number}]"
            yield f"{where}.content", _runs(message.parts)
            for name, value in message.fields:
                yield from ((f"{where}.{name}", text) for text in _values(value))


def _values(text: str | None) -> list[str]:
    """Every string in a JSON text, keys of objects included."""
    found: list[str] = []
    waiting: list[Any] = [None if text is None else json.loads(text)]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            found.append(value)
            if value.startswith("{"):  # arguments of a call, which a template may get as the object that they spell
                with suppress(ValueError, RecursionError):
                    waiting.append(json.loads(value))
        elif isinstance(value, dict):
            waiting += [*value, *value.values()]
        elif isinstance(value, list):
            waiting += value
    return found


def _runs(parts: Sequence[str | Medium]) -> str:
    """Texts as they meet: two parts that follow each other can spell a token together."""
    return "".join(part if isinstance(part, str) else "\0" for part in parts)


def spelled_by(names: Iterable[str]) -> re.Pattern[str] | None:
    """A pattern that finds any of the names, the longest first."""
    ordered = sorted({name for name in names if name}, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, ordered))) if ordered else None
