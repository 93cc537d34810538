"""Forms of conversations: messages, annotations, ShareGPT, questions and answers, the Cauldron, TRL's prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from preshard.packer_service.ingest.document import Document, Medium, Message
from preshard.packer_service.ingest.source.forms.fields import (
    bad,
    kind_of,
    listed,
    parsed_json,
    shown,
    strict_object,
    string,
)
from preshard.packer_service.ingest.source.forms.fill import MEDIA_COLUMNS, Supply, filled_document, numbered_column
from preshard.packer_service.ingest.source.forms.media import medium
from preshard.packer_service.ingest.source.forms.messages import (
    TEMPLATE_COLUMNS,
    message,
    messages,
    template_columns,
    with_loss,
)
from preshard.packer_service.ingest.source.forms.texts import text_document
from preshard.schemas.errors import DocumentError

ALTERNATIVES = ("text", "messages", "annotations")
"""Columns of which a row of the form ``messages`` has one."""
_BESIDE = {"text": (), "messages": (*MEDIA_COLUMNS, *TEMPLATE_COLUMNS), "annotations": ("media",)}
"""Columns that are read beside each of them."""
_BESIDE_ANOTHER = {
    form: frozenset(("media", *_BESIDE["messages"])).difference(beside) for form, beside in _BESIDE.items()
}

QUESTIONS = ("instruction", "question", "query", "prompt")
ANSWERS = ("output", "answer", "response")
"""Names of the columns of a question and of its answer. A row has one of each."""
ALPACA = ("instruction", "output")
SYSTEMS = ("system", "system_prompt")
PREFERENCES = ("chosen", "rejected")
"""Columns of the two answers of a preference."""

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
"""Speakers that ``from`` names, and the roles that they become."""
KEYS = ("from", "value", "weight", "train")


def parse_messages(row: dict[str, Any]) -> Document:
    """The form ``messages``: a conversation, several annotations of shared media, or a text; rows may take turns."""
    forms = [name for name in ALTERNATIVES if name in row]
    if len(forms) != 1:
        bad(f"has {' and '.join(forms) or 'none'} of {', '.join(ALTERNATIVES)}; give exactly one")
    [form] = forms
    numbered = form != "messages" and any(map(numbered_column, row))
    if numbered or not _BESIDE_ANOTHER[form].isdisjoint(row):
        stray = [name for name in row if name in _BESIDE_ANOTHER[form] or (numbered and numbered_column(name))]
        if stray == ["media"]:
            bad("media is legal only beside annotations; put a conversation's media into its messages")
        bad(f"{stray[0]} is not read beside {form}; legal there are {', '.join(_BESIDE[form]) or 'no other fields'}")
    if form == "text":
        return text_document(row["text"], "text")
    if form == "annotations":
        return with_loss(_annotated(row))
    turns = _with_system(row, messages(parsed_json(row["messages"], "messages"), "messages"))
    return filled_document(row, turns, "messages", template_columns(row))


def _with_system(row: dict[str, Any], turns: Sequence[Message], system: str = "system") -> Sequence[Message]:
    """The turns behind the row's system prompt, if it has one."""
    text = string(row[system], system) if system in row else ""
    return (Message(role="system", parts=(text,)), *turns) if text else turns


def _annotated(row: dict[str, Any]) -> Document:
    annotations = listed(parsed_json(row["annotations"], "annotations"), "annotations")
    shared = tuple(
        _placed(medium(part, f"media[{i}]"), part, f"media[{i}]")
        for i, part in enumerate(listed(parsed_json(row.get("media", []), "media"), "media"))
    )
    nothing = Supply.of({}, ())
    branches = []
    for i, given in enumerate(annotations):
        where = f"annotations[{i}]"
        branches.append(nothing.into_messages(messages(given, where), where))
        if not branches[-1]:
            bad(f"{where} has no messages; leave it out")
    return Document(shared=shared, branches=tuple(branches), annotated=True)


def _placed(found: Medium, part: dict[str, Any], where: str) -> Medium:
    if found.is_place:
        bad(f"{where}.{found.kind} is {kind_of(part.get(found.kind))}, not a string")
    return found


def parse_sharegpt(row: dict[str, Any]) -> Document:
    """The form ``sharegpt``: ``conversations`` of ``from`` and ``value``, with columns of media."""
    if "conversations" not in row:
        bad("has no conversations")
    given = listed(parsed_json(row["conversations"], "conversations"), "conversations")
    if given and isinstance(given[0], dict) and "role" in given[0]:
        turns = messages(given, "conversations")  # Hugging Face's keys under ShareGPT's name
    else:
        turns = tuple(_turn(value, f"conversations[{i}]") for i, value in enumerate(given))
    return _conversation(row, turns, "conversations")


def _conversation(
    row: dict[str, Any], turns: Sequence[Message], where: str, system: str = "system", *, in_front: bool = False
) -> Document:
    """The turns with the row's system prompt, media and tools."""
    turns = _with_system(row, turns, system)
    tools = template_columns({k: row[k] for k in ("tools",) if k in row})
    return filled_document(row, turns, where, tools, in_front=in_front)


def _turn(value: Any, where: str) -> Message:
    given = strict_object(value, where, KEYS, "from and value")
    speaker = given.get("from")
    speaker = speaker.lower() if isinstance(speaker, str) else speaker  # NeMo writes User and Assistant
    if not isinstance(speaker, str) or speaker not in SPEAKERS:
        bad(f"{where}.from is {shown(given.get('from'))}; legal are {', '.join(SPEAKERS)}")
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


def parse_pair(row: dict[str, Any]) -> Document:
    """The forms ``alpaca`` and ``question_answer``: a question and its answer, with ``system`` and ``history``."""
    # Beside Alpaca's own names the others are columns of the user's own.
    known = ALPACA if all(name in row for name in ALPACA) else (*QUESTIONS, *ANSWERS)
    asked, answered = ([name for name in names if name in row and name in known] for names in (QUESTIONS, ANSWERS))
    for present, names in ((asked, QUESTIONS), (answered, ANSWERS)):
        if len(present) != 1:
            bad(f"has {' and '.join(present) or 'none'} of {', '.join(names)}; give exactly one")
    texts = {name: string(row[name], name) for name in (*asked, "input", *answered) if name in row}
    question = "\n".join(text for text in (texts[asked[0]], texts.get("input", "")) if text)
    turns: list[Message] = []
    for i, exchange in enumerate(listed(parsed_json(row.get("history", []), "history"), "history")):
        turns += _exchange(exchange, f"history[{i}]")
    turns += [Message(role="user", parts=(question,)), Message(role="assistant", parts=(texts[answered[0]],))]
    systems = [name for name in SYSTEMS if name in row and (name == "system" or known != ALPACA)]
    if len(systems) > 1:
        bad(f"has {' and '.join(systems)}; give one of them")
    return _conversation(row, turns, "turns", *systems, in_front=known != ALPACA)


def _exchange(value: Any, where: str) -> list[Message]:
    """An earlier question with its answer, which carries loss as the last answer does."""
    if not isinstance(value, list) or len(value) != 2:
        bad(f"{where} is {kind_of(value)}, not a list of a question and its answer")
    question, answer = (string(text, f"{where}[{i}]") for i, text in enumerate(value))
    return [Message(role="user", parts=(question,)), Message(role="assistant", parts=(answer,))]


def parse_cauldron(row: dict[str, Any]) -> Document:
    """The form ``cauldron``: images, and ``texts`` of ``user`` and ``assistant`` about them."""
    turns: list[Message] = []
    for i, value in enumerate(listed(row.get("texts"), "texts")):
        where = f"texts[{i}]"
        given = strict_object(value, where, ("user", "assistant", "source"), "user and assistant")
        for role in ("user", "assistant"):
            turns.append(message({"role": role, "content": string(given.get(role), f"{where}.{role}")}, where))
    return filled_document(row, turns, "texts", {}, in_front=True)


def parse_prompt_completion(row: dict[str, Any]) -> Document:
    """The form ``prompt_completion`` of TRL: loss on the completion only; both are strings, or lists of messages."""
    for name in PREFERENCES:
        if name in row:
            bad(f"{name} belongs to a preference; give prompt and completion, or prompt, chosen and rejected")
    for name in ("prompt", "completion"):
        if name not in row:
            bad(f"has no {name}")
    prompt, completion = _side(row["prompt"]), _side(row["completion"])
    if isinstance(prompt, str) != isinstance(completion, str):
        found = f"prompt is {kind_of(prompt)} and completion {kind_of(completion)}"
        bad(f"{found}; give two strings or two lists of messages")
    if isinstance(prompt, str):
        return _of_texts(row, prompt, completion, "completion")
    return _of_turns(row, messages(prompt, "prompt"), messages(completion, "completion"))


def parse_preferences(row: dict[str, Any]) -> Document:
    """The form ``preferences`` of TRL: ``chosen`` and ``rejected``, both strings or both lists of messages. Without a
    ``prompt`` that is what they begin with alike, as in TRL's ``extract_prompt``. Images and videos are the prompt's.
    """
    for name in PREFERENCES:
        if name not in row:
            bad(f"has no {name}; a preference needs chosen and rejected")
    given = {name: _side(row[name]) for name in ("prompt", *PREFERENCES) if name in row}
    first, *others = given
    for name in others:
        if isinstance(given[name], str) != isinstance(given[first], str):
            found = f"{first} is {kind_of(given[first])} and {name} {kind_of(given[name])}"
            bad(f"{found}; give strings or lists of messages in all, or leave prompt out if they begin with it")
    if isinstance(given["chosen"], str):
        texts = {name: string(value, name) for name, value in given.items()}
        shared = 0 if "prompt" in texts else _common(texts["chosen"], texts["rejected"])
        if shared and texts["chosen"][shared - 1] == " ":
            shared -= 1
        prompt = texts.get("prompt", texts["chosen"][:shared])
        sides = [_of_texts(row, prompt, texts[name][shared:], name) for name in PREFERENCES]
    else:
        turns = {name: messages(value, name) for name, value in given.items()}
        shared = 0 if "prompt" in turns else _common(turns["chosen"], turns["rejected"])
        before = turns.get("prompt", turns["chosen"][:shared])
        for name in PREFERENCES:
            if not turns[name][shared:]:
                bad(f"{name} has no messages after the prompt; both must answer it")
        sides = [_of_turns(row, before, turns[name][shared:]) for name in PREFERENCES]
    chosen, rejected = sides
    if any(turn.loss not in (0, 1) for side in sides for turns in side.branches for turn in turns):
        bad("a turn has a weight; a preference counts each token of an answer once: leave it out, or use train: false")
    if chosen.media() != rejected.media():
        bad("chosen and rejected show different images or videos; only the prompt may show any")
    return replace(chosen, rejected=rejected)


def _common(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Number of equal items at the beginning of two sequences."""
    return next(
        (i for i, (a, b) in enumerate(zip(first, second, strict=False)) if a != b), min(len(first), len(second))
    )


def _of_turns(row: dict[str, Any], prompt: Sequence[Message], answer: Sequence[Message]) -> Document:
    """Turns of which those of a prompt carry no loss."""
    silent = [replace(turn, weight=0.0) for turn in prompt]
    document = filled_document(row, (*silent, *answer), "turns", template_columns(row))
    return replace(document, prompt_turns=len(silent))


def _side(value: Any) -> Any:
    """Messages that a table keeps as JSON text are messages; all other strings are what they say."""
    return parsed_json(value, "prompt") if isinstance(value, str) and _spells_messages(value) else value


def _spells_messages(text: str) -> bool:
    return text.lstrip().startswith("[") and '"role"' in text and '"content"' in text


def _of_texts(row: dict[str, Any], prompt: Any, completion: Any, name_of: str) -> Document:
    prompt, completion = string(prompt, "prompt"), string(completion, name_of)
    if any(name in row for name in TEMPLATE_COLUMNS):
        name = next(name for name in TEMPLATE_COLUMNS if name in row)
        bad(f"{name} is for a chat template; it is legal beside lists of messages only")
    if not completion.strip():
        raise DocumentError("empty", f"{name_of} is empty, so no token would carry loss")
    supply = Supply.of(row, (prompt, completion))
    before = supply.into((prompt,) if prompt else (), "prompt")
    after = supply.into((completion,), name_of)
    supply.finish()
    return Document(prompt=before, interleaved=after)
