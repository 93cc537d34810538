"""A conversation as its template writes it, with the places of what the model is trained to write.

A template is a program that somebody else wrote: in a process of its own, one that never ends, or that eats memory, is
only a rejected document. And what it and folders of tokenizers need of ``transformers`` is loaded there, not beside the
packs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from preshard.packer_service.ingest.text.chat_render import check_template, in_shape, render_turns
from preshard.packer_service.ingest.text.chat_spans import alike, answer_spans, shown_fields
from preshard.packer_service.ingest.text.chat_template import ChatTemplate, ChatText, Conversation, LossSpan, Span, Turn
from preshard.packer_service.ingest.text.tokenizer import TOKENIZER_FILE
from preshard.packer_service.runtime.workers import CallFailedError, Isolated, Limits
from preshard.schemas.errors import ConfigError, DocumentError

FIELDS = ("reasoning_content", "reasoning", "thinking", "name")
"""Texts of a message besides its content."""
ANSWERS_REMEDY = "put {% generation %} around what an assistant writes in a copy of it, and name that as chat_template"


def chat_text(template: ChatTemplate, chat: Conversation) -> ChatText:
    """Renders a conversation, and finds what in it carries loss.

    Where the conversation is a prompt and its completion, that is all in which it differs from the prompt alone. Else
    where the template has ``{% generation %}``, it is what stands inside, and elsewhere what an assistant's turn has
    after the prompt for it (``add_generation_prompt``), to the end of the turn.

    Raises:
        DocumentError: ``bad_row``: the template cannot write the conversation, leaves some of it out, or writes a turn
            so that its place is unknown; ``too_long``.
    """
    chat = in_shape(template, chat)
    whole = render_turns(template, chat, chat.turns)
    _refuse_what_is_left_out(template, chat, whole.text)
    if chat.prompt_turns is not None:
        return ChatText(text=whole.text, loss=_joined(_completion(template, chat, whole.text)), marked=False)
    if template.marks_answers:
        weighed = [i for i, turn in enumerate(chat.turns) if turn["role"] == "assistant" and chat.weights[i] != 1]
        places = _answers(template, chat, whole.text, weighed, "leave its weight out")
        spans = [
            (start, end, _least(places, [chat.weights[i] for i in weighed], start, end))
            for start, end in whole.generated
        ]
    else:
        learnt = [number for number, weight in enumerate(chat.weights) if weight]
        answers = _answers(template, chat, whole.text, learnt, ANSWERS_REMEDY)
        spans = [(*span, chat.weights[number]) for number, span in zip(learnt, answers, strict=True)]
    return ChatText(text=whole.text, loss=_joined(spans), marked=template.marks_answers)


def _completion(template: ChatTemplate, chat: Conversation, whole: str) -> list[LossSpan]:
    """Spans behind a prompt, as TRL finds it: from where the conversation stops to begin like the prompt for an answer.

    Where answers count differently, what lies between two of them counts as the later one.
    """
    n = chat.prompt_turns or 0
    start = alike(render_turns(template, chat, chat.turns[:n], prompt=True).text, whole)
    numbers = [i for i in range(n, len(chat.turns)) if chat.turns[i]["role"] == "assistant"]
    weights = [chat.weights[i] for i in numbers]
    if len(set(weights)) == 1:
        return [(start, len(whole), weights[0])]
    ends = [end for _, end in _answers(template, chat, whole, numbers[:-1], "leave its weight out")]
    return list(zip([start, *ends], [*ends, len(whole)], weights, strict=True))


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
    """Refuses a conversation of which the template drops something, as not all know all roles and fields."""
    for name, given, bare in (
        ("tools", chat.tools, replace(chat, tools=None)),
        ("documents", chat.documents, replace(chat, documents=None)),
    ):
        if given is not None and _text(template, bare, chat.turns) == whole:
            raise _left_out(name, ignorable=name)
    for number, turn in enumerate(chat.turns):
        shown = all(text in whole for text in _texts(turn.get("content")))
        if not shown and _same(template, chat, number, None, whole):
            raise _left_out(f"the {turn['role']}'s turn", number)
        if turn.get("tool_calls") and _same(template, chat, number, _without(turn, "tool_calls"), whole):
            raise _left_out("tool_calls", number)
    _refuse_fields_left_out(template, chat, whole)


def _refuse_fields_left_out(template: ChatTemplate, chat: Conversation, whole: str) -> None:
    """The same for texts beside the content. One that is written while its turn is the last is not dropped.

    So the reasoning of earlier turns is the template's own choice, and a field that it does not know is a mistake.
    """
    fields = [(number, name) for number, turn in enumerate(chat.turns) for name in FIELDS if turn.get(name)]
    shown = shown_fields(template, chat, whole) if fields else set()
    for number, name in fields:
        if (number, name) in shown:
            continue
        bare, upto = _without(chat.turns[number], name), chat.turns[: number + 1]
        if _same(template, chat, number, bare, whole) and (
            _text(template, chat, upto) == _text(template, chat, (*upto[:-1], bare))
        ):
            raise _left_out(name, number, ignorable=name)


def _without(turn: Turn, name: str) -> Turn:
    return {key: value for key, value in turn.items() if key != name}


def _same(template: ChatTemplate, chat: Conversation, number: int, other: Turn | None, whole: str) -> bool:
    """Whether the text stays the same with another turn in place of one, or with none."""
    between = () if other is None else (other,)
    return _text(template, chat, (*chat.turns[:number], *between, *chat.turns[number + 1 :])) == whole


def _text(template: ChatTemplate, chat: Conversation, turns: tuple[Turn, ...]) -> str | None:
    """The text of other turns; None if the template cannot write them."""
    try:
        return render_turns(template, chat, turns).text
    except DocumentError:
        return None


def _left_out(what: str, number: int | None = None, *, ignorable: str | None = None) -> DocumentError:
    where = "" if number is None else f"turn {number + 1}: "
    meant = "" if ignorable is None else f", or say that it is meant by ignore_fields=[{ignorable}]"
    return DocumentError(
        "bad_row", f"{where}the chat template leaves out {what}; name one that writes it as chat_template{meant}"
    )


def _texts(content: Any) -> list[str]:
    """The texts of a content, without the white space that templates strip."""
    parts = [content] if isinstance(content, str) else [part.get("text") or "" for part in content or ()]
    return [text.strip() for text in parts]


def _least(places: list[Span], weights: list[float], start: int, end: int) -> float:
    """Loss weight of characters that turns lie in: the least of theirs, or 1 outside of all of them."""
    return min(
        (w for w, (first, last) in zip(weights, places, strict=True) if start < last and first < end), default=1.0
    )


def _joined(spans: list[LossSpan]) -> tuple[LossSpan, ...]:
    """Spans with loss in ascending order and apart, and one where those touch that count alike."""
    joined: list[LossSpan] = []
    for start, end, weight in sorted(span for span in spans if span[2] and span[0] < span[1]):
        before = joined[-1] if joined else (0, 0, 0.0)
        if start <= before[1] and weight == before[2]:
            joined[-1] = before[0], max(end, before[1]), weight
        elif max(start, before[1]) < end:
            joined.append((max(start, before[1]), end, weight))
    return tuple(joined)


PROCESSOR_TEMPLATE = "chat_template.json"
"""File in which processors kept their template before ``chat_template.jinja``; it goes before the tokenizer's."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FolderTokenizer:
    """Parts of a tokenizer taken from a folder.

    Attributes:
        tokenizer: the tokenizer that ``transformers`` uses, as the JSON text of the ``tokenizers`` library.
        special_tokens: names in templates (``bos_token``, ``eos_token`` ...) to special tokens, as JSON text.
        templates: the chat templates by name, of which ``default`` is the only one that all folders with any have.
    """

    tokenizer: str
    special_tokens: str
    templates: tuple[tuple[str, str], ...]


def read_folder(path: str) -> FolderTokenizer:
    """Loads the tokenizer of a folder.

    Raises:
        ConfigError: it has none, or none that the ``tokenizers`` library runs.
    """
    from transformers import AutoTokenizer

    folder = Path(path)
    if not (folder / TOKENIZER_FILE).is_file():
        raise ConfigError(f"tokenizer: {path!r} has no {TOKENIZER_FILE}; save it with AutoTokenizer.save_pretrained")
    try:
        loaded = AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        tokenizer = loaded.backend_tokenizer.to_str()
    except Exception as error:  # whatever a wrong file makes of the library
        reason = " ".join(str(error).split())[:300]
        raise ConfigError(f"tokenizer: transformers cannot load {path!r} ({type(error).__name__}: {reason})") from None
    given = loaded.chat_template or {}
    templates = dict(given) if isinstance(given, dict) else {"default": given}
    if (folder / PROCESSOR_TEMPLATE).is_file() and not (folder / "chat_template.jinja").is_file():
        templates["default"] = _processor_template(folder / PROCESSOR_TEMPLATE)
    return FolderTokenizer(
        tokenizer=tokenizer,
        special_tokens=json.dumps(loaded.special_tokens_map, default=str),
        templates=tuple(sorted(templates.items())),
    )


def _processor_template(path: Path) -> str:
    try:
        template = json.loads(path.read_text(encoding="utf-8"))["chat_template"]
    except (ValueError, KeyError, TypeError):
        template = None
    if not isinstance(template, str):
        raise ConfigError(f"tokenizer: {str(path)!r} holds no chat_template")
    return template


CPU_SECONDS = 20
"""Processor time of one document's template. A conversation of a thousand turns takes one to two seconds."""

TEMPLATES = Isolated(Limits(cpu_seconds=CPU_SECONDS, tries=1))
"""The packing process's only one; the first template or folder starts its process."""


def chat_texts(template: ChatTemplate, chats: Sequence[Conversation], process: Isolated = TEMPLATES) -> list[ChatText]:
    """Conversations as a template writes them, with what carries loss.

    Raises:
        DocumentError: as in :func:`preshard.packer_service.ingest.text.chat_text.chat_text`; also ``bad_row`` when the
            template used up its time or memory.
        OSError: the process was ended from outside; no document is at fault.
    """
    try:
        return process.call(_without_torch, _chat_texts, template, tuple(chats))
    except CallFailedError as error:
        raise DocumentError("bad_row", f"the chat template {error}") from None


def load_folder(path: str) -> FolderTokenizer:
    """Loads what :func:`preshard.packer_service.ingest.text.chat_text.read_folder` takes from a folder.

    Raises:
        ConfigError: as there.
    """
    # the helper keeps the working folder of the first call, and a program may have gone elsewhere since
    found: FolderTokenizer = _once(f"tokenizer: loading {path!r}", read_folder, str(Path(path).absolute()))
    return found


def check_in_process(template: ChatTemplate) -> None:
    """Raises if the text is not a chat template.

    Raises:
        ConfigError: as in :func:`preshard.packer_service.ingest.text.chat_template.check_template`.
    """
    _once("chat_template: compiling it", check_template, template)


def _once(what: str, function: Callable[..., Any], given: Any) -> Any:
    try:
        [result] = TEMPLATES.call(_without_torch, function, given)
    except CallFailedError as error:
        raise ConfigError(f"{what} {error}") from None
    return result


def _chat_texts(template: ChatTemplate, chats: Sequence[Conversation]) -> Iterator[ChatText]:
    return (chat_text(template, chat) for chat in chats)


def _without_torch(function: Callable[..., Any], *given: Any) -> Any:
    """Keeps ``transformers`` in the helper from loading torch, some 200 MB and three seconds: it needs no tensor."""
    if "transformers" not in sys.modules:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
        os.environ["HF_HUB_OFFLINE"] = "1"  # a folder is whole, or refused
        sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    return function(*given)
