"""Detection of the form of a file's rows by their columns."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher, get_close_matches
from functools import lru_cache
from itertools import product
from typing import Any

from preshard.packer_service.ingest.document import SHOWN_CHARACTERS, Document
from preshard.packer_service.ingest.shell import set_option
from preshard.packer_service.ingest.source.forms import dialogues, texts, tokens
from preshard.packer_service.ingest.source.forms.custom import is_custom, parse_by
from preshard.packer_service.ingest.source.forms.fill import (
    CLIP_COLUMNS,
    COLUMNS,
    MEDIA_COLUMNS,
    VIDEO_COLUMNS,
    numbered_column,
)
from preshard.packer_service.ingest.source.forms.inline import holds_media
from preshard.packer_service.ingest.source.forms.messages import TEMPLATE_COLUMNS
from preshard.schemas.errors import ConfigError

AUTO = "auto"
"""Asks for the form that the columns show."""
IDENTITY = ("id", "source", "document_weight")
"""Columns that every form has."""

Columns = Mapping[str, str]
"""Names of columns, each with the kind of what it holds, as :func:`kind_of_value` says it."""
KINDS = FLAG, NUMBER, OTHER, OBJECT, OBJECTS, MEDIA, PLACES = (
    "flag", "number", "other", "object", "list of objects", "media", "values of places"
)  # fmt: skip
"""The later ones tell more of a column whose rows differ."""

PLACE_COLUMNS = {"objects": ("<ref-object>", "<bbox>")}
"""Columns whose values placeholders of a text stand for, as ms-swift has them."""


def kind_of_value(value: Any) -> str:
    """The kind of a value of a row, but for media, which take longer to tell."""
    if isinstance(value, int | float):
        return FLAG if isinstance(value, bool) else NUMBER
    if isinstance(value, dict):
        return OBJECT
    return OBJECTS if isinstance(value, list) and dict in set(map(type, value)) else OTHER  # of ids, thousands


def kinds_of_row(row: Mapping[str, Any]) -> dict[str, str]:
    """The columns of a row."""
    columns = {name: kind_of_value(value) for name, value in row.items() if value is not None}
    return columns | {name: kind for name in columns if (kind := closer_kind(name, row)) is not None}


def closer_kind(name: str, row: Mapping[str, Any]) -> str | None:
    """Kind of a row's column if it holds media, or values for places of its text."""
    if name in PLACE_COLUMNS and _spells(row, PLACE_COLUMNS[name]):
        return PLACES
    return MEDIA if holds_media(row[name]) else None


def _spells(value: Any, marks: tuple[str, ...]) -> bool:
    """Whether any text in a value holds one of some marks."""
    if isinstance(value, str):
        return any(mark in value for mark in marks)
    inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(_spells(each, marks) for each in inside)


@dataclass(frozen=True, kw_only=True, slots=True)
class Form:
    """One way in which people write documents as rows.

    Attributes:
        name: as ``--form`` takes it.
        title: what a user reads before the work begins.
        needs: groups of columns; a file that has all columns of one group may have this form.
        more: other columns that it can read; None is every column.
        parse: makes a document of a row without its null fields, or raises ``DocumentError``.
        unless: columns beside which a file has another form.
        turns: whether ``texts`` holds turns of a conversation; None where there is no such column.
    """

    name: str
    title: str
    needs: tuple[tuple[str, ...], ...]
    more: tuple[str, ...] | None
    parse: Callable[[dict[str, Any]], Document]
    unless: tuple[str, ...] = ()
    turns: bool | None = None

    def fits(self, columns: Columns) -> bool:
        """Whether a file with these columns has this form."""
        if any(name in columns for name in self.unless):
            return False
        if self.turns is not None and "texts" in columns and (columns["texts"] == OBJECTS) != self.turns:
            return False
        names = {*present(columns), *({"image"} if any(numbered_column(name) == "image" for name in columns) else ())}
        return any(all(name in names for name in group) for group in self.needs)

    def reads(self, column: str, columns: Columns) -> bool:
        """Whether it reads a column of a file or row with these columns."""
        if self.more is None or column in IDENTITY:
            return True
        if column in CLIP_COLUMNS or column == "fps":
            beside = VIDEO_COLUMNS if column != "fps" else ("frames",)
            return any(name in columns and self.reads(name, columns) for name in beside)
        if column == "frames" and columns.get("frames") in (NUMBER, FLAG):
            return False  # how many a video has
        if column == "system" and self.name == "messages" and "messages" not in columns:
            return False
        if (kind := numbered_column(column)) is not None:
            alone = not any(name in columns for name in COLUMNS[kind])
            return self._has(kind) and alone and columns.get(column) not in (NUMBER, FLAG)
        return self._has(column)

    def _has(self, column: str) -> bool:
        return self.more is None or column in self.more or any(column in group for group in self.needs)


_NO_OBJECTS = {(name, kind) for name in ("body", "content", "contents") for kind in (OBJECT, OBJECTS)}
_NO_OBJECTS.add(("annotations", OBJECTS))


def present(columns: Columns) -> list[str]:
    """The columns that may show a form: ``contents`` of objects are Gemini's, a ``body`` is a request, ``annotations``
    of objects are those of COCO, and none is a text or a conversation.
    """
    return [name for name, kind in columns.items() if (name, kind) not in _NO_OBJECTS]


_CHAT = (*MEDIA_COLUMNS, "tools")
_PAIR = (*_CHAT, "input", "system", "history")

FORMS: tuple[Form, ...] = (
    Form(
        name="tokens",
        title="tokens",
        needs=((tokens.IDS,),),
        more=tokens.COLUMNS,
        parse=tokens.parse_tokens,
    ),
    Form(
        name="sharegpt",
        title="ShareGPT / LLaVA conversations",
        needs=(("conversations",),),
        more=("system", *_CHAT),
        parse=dialogues.parse_sharegpt,
    ),
    Form(
        name="messages",
        title="messages, text or annotations",
        needs=(("messages",), ("annotations",)),
        more=("text", "media", "system", *MEDIA_COLUMNS, *TEMPLATE_COLUMNS),
        parse=dialogues.parse_messages,
    ),
    Form(
        name="preferences",
        title="preferences: chosen and rejected answers",
        needs=(dialogues.PREFERENCES,),
        more=("prompt", *MEDIA_COLUMNS, *TEMPLATE_COLUMNS),
        parse=dialogues.parse_preferences,
    ),
    Form(
        name="prompt_completion",
        title="TRL prompt and completion",
        needs=(("prompt", "completion"),),
        more=(*MEDIA_COLUMNS, *TEMPLATE_COLUMNS),
        parse=dialogues.parse_prompt_completion,
    ),
    Form(
        name="alpaca",
        title="Alpaca instructions",
        needs=(dialogues.ALPACA,),
        more=_PAIR,
        parse=dialogues.parse_pair,
    ),
    Form(
        name="cauldron",
        title="turns of user and assistant about images (the Cauldron)",
        needs=(("texts", "images"),),
        more=(),
        parse=dialogues.parse_cauldron,
        turns=True,
    ),
    Form(
        name="interleaved",
        title="interleaved documents (OBELICS, MMC4)",
        needs=(texts.OBELICS, texts.MMC4),
        more=(),
        parse=texts.parse_interleaved,
        turns=False,
    ),
    Form(
        name="caption",
        title="images or videos with a caption",
        needs=tuple(product(texts.CAPTIONS, (*MEDIA_COLUMNS, *texts.PATHS))),
        more=(),
        parse=texts.parse_caption,
    ),
    Form(
        name="text",
        title="text",
        # Behind rows of ``text`` there may be conversations, which the form ``messages`` reads as well.
        needs=tuple((name,) for name in texts.TEXTS if name != "text"),
        more=("text",),
        parse=texts.parse_text,
        unless=("text",),
    ),
    Form(
        name="question_answer",
        title="questions and answers",
        needs=tuple(pair for pair in product(dialogues.QUESTIONS, dialogues.ANSWERS) if pair != dialogues.ALPACA),
        more=(*_PAIR, "system_prompt"),
        parse=dialogues.parse_pair,
        unless=("text",),
    ),
)
"""Every form; of several that fit a file, the first is taken."""

MESSAGES = next(form for form in FORMS if form.name == "messages")

OF_A_PREFERENCE = {*dialogues.PREFERENCES, "rejected_response", "rejected_messages"}
ALIKE = 0.85
"""Least similarity of two names of which one may have been meant (:mod:`difflib`)."""
SHOWN_COLUMNS = 8
"""Columns that a message names."""


def detect(columns: Columns) -> Form | None:
    """The form of a file with these columns, None if no form has them."""
    found = next((form for form in FORMS if form.fits(columns)), None)
    return found or (MESSAGES if "text" in columns else None)


@lru_cache(maxsize=4096)
def left_columns(form: str, columns: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Columns, of those given, that a form does not read; most rows of a file have the same ones."""
    found, given = find_form(form), dict(columns)
    return tuple(name for name in given if not found.reads(name, given))


@lru_cache(maxsize=32)
def find_form(name: str) -> Form:
    """A form by its name.

    Raises:
        ConfigError: there is none.
    """
    if is_custom(name):
        return Form(name=name, title=name, needs=(), more=None, parse=parse_by(name))
    found = next((form for form in FORMS if form.name == name), None)
    if found is None:
        legal = ", ".join(form.name for form in FORMS)
        raise ConfigError(f"--form {name}: no such form; legal are {AUTO}, {legal} and package.module:function")
    return found


def named(column: str) -> str:
    """A column's name as messages repeat it, and options between single quotes take it."""
    return column if column.isidentifier() else json.dumps(column, ensure_ascii=False)[:SHOWN_CHARACTERS]


_OTHER_NAMES = {
    "question": ("question", "prefix", "problem", "query"),
    "answer": ("answer", "suffix", "label", "solution", "ground_truth", "target"),
    "caption": ("caption", "captions", "cap", "text", "title", "alt", "alt_text", "sentence", "report"),
}
"""Names, in small letters, under which other people's files have the columns of a form."""
_FILE_NAME = re.compile(r"(?i)(image|img|figure|video)s?[ _]?(path|name|file)")


_OF_GEMINI = (
    '{system: [.systemInstruction.parts[]?.text] | join("\\n"), messages: [.contents[] | '
    '{role: (if .role == "model" then "assistant" else .role end), content: [.parts[] | '
    'if .text then {type: "text", text} else {type: "image", image: (.fileData.fileUri // .inlineData.data)} end]}]}'
)
"""Program for ``jq`` that makes a row of the form ``messages`` of one of Gemini's."""


def _renamed(columns: Columns) -> dict[str, str]:
    """New names under which the columns of a file have a form that reads its images, if there are such names."""
    read = {*MEDIA_COLUMNS, *texts.PATHS}
    media = [name for name, kind in columns.items() if kind == MEDIA or _FILE_NAME.fullmatch(name)]
    media = [] if any(name in read or numbered_column(name) for name in columns) else media
    kind = "video" if any("video" in name.lower() for name in media) else "image"
    shown = {name: kind if len(media) == 1 else f"{kind}_{i}" for i, name in enumerate(media, 1)}
    for wanted in (("question", "answer"), ("caption",)):
        found = dict[str, str]()
        for new in wanted:
            endings = (".txt",) if new == "caption" else ()
            alike = [old for old in columns if old.lower() in _OTHER_NAMES[new] or old.lower().endswith(endings)]
            if new == "caption" and not alike:  # the only text beside them
                texts_beside = [
                    old for old, of in columns.items() if of == OTHER and old not in ("id", "source", *shown)
                ]
                alike = texts_beside if len(texts_beside) == 1 else []
            found |= {old: new for old in alike[:1] if columns[old] == OTHER}
        names = {old: new for old, new in (shown | found).items() if old != new}
        form = detect({names.get(name, name): kind for name, kind in columns.items()})
        if len(found) == len(wanted) and names and form is not None:
            return names
    return {}


def formless(columns: Columns) -> str:
    """Reason why rows with these columns have no form, and what comes nearest."""
    if found := sorted(OF_A_PREFERENCE & columns.keys()):
        nearest = "the form preferences reads both answers, as chosen and rejected: rename the columns"
        return f"{' and '.join(found)} alone is not a preference; {nearest}"
    if "completions" in columns:
        return "completions are steps, each with a label, which cannot be packed; give prompt and completion"
    if columns.get("contents") == OBJECTS:
        return f"contents of parts are Gemini's turns; write them as messages: jq -c '{_OF_GEMINI}'"
    if renamed := _renamed(columns):
        pairs = ", ".join(f"{named(old)}: {new}" for old, new in renamed.items())
        them = f"{' and '.join(map(named, renamed))} under {'these names' if len(renamed) > 1 else 'this name'}"
        return f"no form reads {them}; {set_option(f'rename_columns={{{pairs}}}')} does"
    return _nearest(columns)


def _nearest(columns: Columns) -> str:
    """The form or name that comes nearest to columns without a form."""
    names = present(columns)
    candidates = [
        (len(has) / len(group), sum(form.reads(name, columns) for name in names), form, has)
        for form in FORMS
        for group in form.needs
        if 0 < len(has := [name for name in group if name in names]) < len(group)
    ]
    if candidates:
        _, _, best, has = max(candidates, key=lambda each: each[:2])
        beside = [tuple(name for name in group if name not in has) for group in best.needs if {*has} < {*group}]
        for [lacks] in (each for each in beside if len(each) == 1):
            if alike := get_close_matches(lacks, [name for name in names if name not in has], 1, ALIKE):
                rename = set_option(f"rename_columns={{{named(alike[0])}: {lacks}}}")
                return f"{' and '.join(has)} alone is no form; {best.name} reads {lacks} beside it: {rename}"
        *others, last = dict.fromkeys(" and ".join(each) for each in beside)
        needs = f"{', '.join(others)} or {last}" if others else last
        return f"{' and '.join(has)} alone is no form; the nearest, {best.name}, needs {needs} beside it"
    alone = [group[0] for form in FORMS for group in form.needs if len(group) == 1]
    near = {column: get_close_matches(column.lower(), alone, 1, ALIKE) for column in names}
    if likely := [column for column in names if near[column]]:
        column = max(likely, key=lambda each: SequenceMatcher(None, each.lower(), near[each][0]).ratio())
        rename = set_option(f"rename_columns={{{named(column)}: {near[column][0]}}}")
        return f"no form reads the column {named(column)}; the nearest is {near[column][0]}: {rename}"
    shown = ", ".join(map(named, list(columns)[:SHOWN_COLUMNS]))
    return f"no form has the columns {shown}; write messages, or read them by --form package.module:function"
