"""Place of each turn of an assistant in the text of a whole conversation.

A template may write a turn in one way while it is the last and in another once others follow, as those that drop the
reasoning of earlier turns do. So the whole conversation is rendered again with a mark in each field. Marks that are all
there is of a difference show where the fields went, and what stands behind a mark is known from shorter renderings: up
to the turn with the prompt for it, the end of the turn before and the turn's header; up to the turn itself, its end.
"""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count

from preshard.packer_service.ingest.text.chat_render import render_turns
from preshard.packer_service.ingest.text.chat_template import ChatTemplate, Conversation, Span, Turn, spelled_by
from preshard.schemas.errors import DocumentError

MARKED = ("content", "reasoning_content", "reasoning", "thinking", "name")
"""Fields of a message that are text, in which a mark can stand."""

Place = Callable[[int], int]
"""Function that gives the place of a mark in a text of some characters, white space at its end left out."""

PLACES: tuple[tuple[Place, bool], ...] = (
    (lambda length: length, True),
    (lambda length: length // 2, True),
    (lambda length: length, False),
    (lambda length: length // 2, False),
)
"""Ways to mark a conversation, each with whether names of called functions have a mark too. A template may look at how
a text ends, or at a name; a way that makes it write something else is left for the next one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Marked:
    """A text without the marks that it was rendered with.

    Attributes:
        text: the text.
        at: where each mark stood, by its number and which time it came, in the order of the text.
    """

    text: str
    at: dict[tuple[int, int], int]

    @classmethod
    def of(cls, text: str, mark: re.Pattern[str]) -> Marked:
        at: dict[tuple[int, int], int] = {}
        times: dict[int, int] = {}
        kept, done, length = [], 0, 0
        for found in mark.finditer(text):
            number = int(found[1])
            times[number] = times.get(number, 0) + 1
            kept.append(text[done : found.start()])
            length += found.start() - done
            at[number, times[number]] = length
            done = found.end()
        return cls(text="".join([*kept, text[done:]]), at=at)


@dataclass(frozen=True, kw_only=True)
class _SpanFinder:
    """A conversation whose turns are marked in one way, the text of all of it, and where the marks are in it."""

    template: ChatTemplate
    chat: Conversation
    turns: tuple[Turn, ...]
    owners: Sequence[tuple[int, str]]
    mark: re.Pattern[str]
    whole: Marked

    def span(self, number: int) -> Span | None:
        """The characters of a turn that follow its header; None if the shorter renderings do not show them."""
        start = self._start(number)
        end = None if start is None else self._end(number)
        if start is None or end is None or not start <= end:
            return None
        # Its own marks lie in it and those of other turns do not. Later turns may repeat a text, as a called name.
        first = [(self.owners[index][0], at) for (index, times), at in self.whole.at.items() if times == 1]
        fits = all(start <= at <= end if owner == number else not start < at < end for owner, at in first)
        return (start, end) if fits else None

    def _start(self, number: int) -> int | None:
        found = self._behind(number, prompt=True)
        if found is None:
            return None
        at, tail = found
        same = alike(self.whole.text[at : at + len(tail)], tail)
        if same == len(tail):
            return at + same
        # The prompt may open what the template leaves out of a turn that others follow, such as reasoning: a header
        # remains, and then a token that is not there.
        begins = max((begin for begin, _ in _tokens(self.template, tail) if begin <= same), default=0)
        return at + begins if begins > self._header(number, tail) else None

    def _end(self, number: int) -> int | None:
        if number + 1 == len(self.turns):
            return len(self.whole.text)
        found = self._behind(number + 1, prompt=False)
        if found is not None and self.whole.text.startswith(found[1], found[0]):
            return found[0] + len(found[1])
        # a turn may end in another way while it is the last; then it ends before the prompt for the next one
        found, before = self._behind(number + 1, prompt=True), self._behind(number, prompt=True)
        if found is None or before is None:
            return None
        header = before[1][self._header(number, before[1]) :]
        end = found[1].removesuffix(header)
        is_there = found[1].endswith(header) and end and self.whole.text.startswith(end, found[0])
        return found[0] + len(end) if is_there else None

    def _header(self, number: int, tail: str) -> int:
        """Start of a turn's header, which its prompt alone has, in the text behind the last mark."""
        found = self._behind(number, prompt=False)
        same = alike(tail, "" if found is None else found[1])
        return next((begin for begin, end in _tokens(self.template, tail) if begin < same < end), same)

    def _behind(self, number: int, *, prompt: bool) -> tuple[int, str] | None:
        """The text behind the last mark before a turn, in the turns up to it, and where that mark is in the whole."""
        if not number and not prompt:
            return 0, ""
        try:
            text = render_turns(self.template, self.chat, self.turns[:number], prompt=prompt).text
        except DocumentError:
            if self.owners:
                return None
            raise
        shown = Marked.of(text, self.mark)
        common = [(at, self.whole.at[key]) for key, at in shown.at.items() if key in self.whole.at]
        own, at = common[-1] if common else (0, 0)
        return at, shown.text[own:]


def answer_spans(template: ChatTemplate, chat: Conversation, whole: str, numbers: Sequence[int]) -> dict[int, Span]:
    """The characters of turns of the assistant, from the end of the prompt for each to its own end.

    Args:
        template: the template.
        chat: the conversation.
        whole: its text.
        numbers: the turns to find.

    Returns:
        Those that were found.

    Raises:
        DocumentError: as in :func:`~preshard.packer_service.ingest.text.chat_render.render_turns`.
    """
    found: dict[int, Span] = {}
    for finder in _finders(template, chat, whole):
        for number in numbers:
            if number not in found and (span := finder.span(number)) is not None:
                found[number] = span
        if len(found) == len(numbers):
            break
    return found


def shown_fields(template: ChatTemplate, chat: Conversation, whole: str) -> set[tuple[int, str]]:
    """Fields of turns that are seen to stand in a conversation's text, each by the number of its turn and its name."""
    finder = next(_finders(template, chat, whole))
    return {finder.owners[index] for index, _ in finder.whole.at}


def _finders(template: ChatTemplate, chat: Conversation, whole: str) -> Iterator[_SpanFinder]:
    """The conversation marked in each way that leaves its text as it is, and at last without any mark."""
    given = (whole + json.dumps(chat.turns)).lower()
    salt = next(str(number) for number in count() if f"q{number}z" not in given)
    mark = re.compile(rf"q{salt}z(\d{{6}})z", re.IGNORECASE)
    for place, names in PLACES:
        owners: list[tuple[int, str]] = []
        turns = tuple(_with_marks(turn, number, owners, place, names, salt) for number, turn in enumerate(chat.turns))
        try:
            shown = Marked.of(render_turns(template, chat, turns).text, mark)
        except DocumentError:
            continue
        if shown.text == whole:
            yield _SpanFinder(template=template, chat=chat, turns=turns, owners=owners, mark=mark, whole=shown)
    nothing = Marked(text=whole, at={})
    yield _SpanFinder(template=template, chat=chat, turns=chat.turns, owners=(), mark=mark, whole=nothing)


def _with_marks(turn: Turn, number: int, owners: list[tuple[int, str]], place: Place, names: bool, salt: str) -> Turn:
    """A turn with a mark in each of its texts; ``owners`` gets the turn's number and the field for each."""

    def marked(text: str, field: str) -> str:
        length = len(text.rstrip())
        if not length:
            return text
        owners.append((number, field))
        at = place(length)
        return f"{text[:at]}q{salt}z{len(owners) - 1:06}z{text[at:]}"

    def in_call(call: Turn) -> Turn:
        function = call.get("function")
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            return {**call, "function": {**function, "name": marked(function["name"], "tool_calls")}}
        return {**call, "name": marked(call["name"], "tool_calls")} if isinstance(call.get("name"), str) else call

    out = dict(turn)
    for field in MARKED:
        value = turn.get(field)
        if isinstance(value, str):
            out[field] = marked(value, field)
        elif field == "content" and isinstance(value, list):
            out[field] = [
                {**part, "text": marked(part["text"], field)} if part["type"] == "text" else part for part in value
            ]
    if names and "tool_calls" in turn:
        out["tool_calls"] = [in_call(call) for call in turn["tool_calls"]]
    return out


def alike(a: str, b: str) -> int:
    """Number of characters that two texts have in common at their beginnings."""
    return bisect_left(range(min(len(a), len(b))), True, key=lambda n: a[: n + 1] != b[: n + 1])


def _tokens(template: ChatTemplate, text: str) -> Iterator[Span]:
    """Places where a text spells one of the tokenizer's tokens besides its vocabulary."""
    pattern = _pattern(template.tokens)
    return (found.span() for found in pattern.finditer(text)) if pattern else iter(())


_pattern = lru_cache(maxsize=4)(spelled_by)
