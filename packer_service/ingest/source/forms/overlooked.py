"""Columns that a form does not read and that must not be left out in silence: media, turns, what placeholders need."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from typing import Any

from preshard.packer_service.ingest.document import MediumKind
from preshard.packer_service.ingest.shell import set_option
from preshard.packer_service.ingest.source.forms import dialogues
from preshard.packer_service.ingest.source.forms.detect import (
    FLAG,
    FORMS,
    MEDIA,
    MESSAGES,
    NUMBER,
    OF_A_PREFERENCE,
    PLACE_COLUMNS,
    PLACES,
    Columns,
    Form,
    closer_kind,
    detect,
    find_form,
    left_columns,
    named,
)
from preshard.packer_service.ingest.source.forms.fill import COLUMNS, MEDIA_COLUMNS, VIDEO_COLUMNS, numbered_column
from preshard.packer_service.ingest.source.forms.media import NOT_FOLLOWED, PIXELS
from preshard.packer_service.ingest.source.forms.texts import PATHS

_TELLING = re.compile(
    r"(?i)^(.*[_.])?(image|img|pic|picture|photo|frame|video|clip|audio|speech|sound|message|conversation|dialog|dialogue"
    r"|chat|turn|jpe?g|png|webp|gif|mp4|webm|mkv|mov|wav|mp3|flac|medi)"
    r"(s|a|um)?([_.]?[0-9]+)?([_.](paths?|urls?|uris?|files?|names?|bytes|lists?|base64|b64))?$"
)
_SOUND, _MOVING = re.compile("(?i)audio|speech|sound|wav|mp3|flac"), re.compile("(?i)video|clip|mp4|webm|mkv|mov")
_OF_A_QUESTION = ("context", "passage", "paragraph", "article", "hint", "choices", "options")
"""Columns without which many questions mean something else."""
_CHOICE = re.compile(r"(?:(?i:choice|option|opt|candidate|distractor)s?[ _.-]?(?:[A-Ha-h]|[0-9]{1,2})|op[a-h]|[A-H])")
"""Columns of one choice each, as VLMEvalKit (``A``), MedMCQA (``opa``) and PMC-VQA (``Choice A``) have them."""
_OF_A_PROMPT = (*(name for name in dialogues.QUESTIONS if name != "prompt"), *dialogues.SYSTEMS, "input", "history")
"""Columns that answers belong to, and that the form ``preferences`` reads in ``prompt`` alone."""
_BELONGS = {"question_answer": ("question", _OF_A_QUESTION), "preferences": ("prompt", _OF_A_PROMPT)}
"""Columns that each form does not read, and where their values belong."""
_CONVERSATIONS = ("messages", "sharegpt", "alpaca", "prompt_completion", "question_answer")
_OF_A_CONVERSATION = {
    **dict.fromkeys(("system", "system_prompt", "system_message", "systemPrompt"), "system"),
    **dict.fromkeys(("functions", "tools"), "tools"),
}
"""Columns that are part of a conversation, and the names under which some forms read them."""
_VERDICTS = ("label", "kto_tag")
"""Columns that say whether an answer is good, as TRL, ms-swift and LLaMA-Factory name them."""
_OF_A_PART = ("fps", "sample_fps", "max_frames", *PIXELS, *NOT_FOLLOWED)
"""Columns that say how an image or video beside them is shown, or how the file itself is."""
_NAMES_OF_FILES = frozenset(("file", "filename", "filepath", "file_name", "file_path", "key", "name", "path", "title"))
_ENDS, _PAIRS = re.compile("(?i)end|stop"), re.compile("(?i)(stamp|range|span|segment|interval|moment|clip)s?$")
_CUTS = re.compile(
    r"(?i)(clip|segment|video|seg|span|moment|event)_(start|begin|end|stop)(_?(time|sec|secs|seconds|s|ms))?"
    r"|(start|begin|end|stop)_?(time|sec|secs|seconds|s|ms|times?_?stamp|frame|frame_?(idx|index|id))"
    r"|(frame|frame_?(idx|index))_?(start|begin|end|stop)"
    r"|time_?stamps?|time_?(range|span)s?|clip|segment|span|moment|interval"
)
"""Columns that say which part of a video is meant."""


def is_telling(column: str) -> bool:
    """Whether a column's name says that it holds media or conversation, which must not be left out in silence."""
    return bool(_TELLING.match(column))


def overlooked(
    columns: Columns, form: Form, named_by_user: Collection[str] = (), row: Mapping[str, Any] | None = None
) -> str | None:
    """Reason why the columns of a file or row must not be read in a form: one would be left out, and what to do.

    Args:
        columns: the columns.
        form: the form.
        named_by_user: columns that the configuration reads.
        row: the row; its columns that are not read are looked at for media.
    """
    given = tuple(columns.items())
    if row is not None:
        left = [name for name in left_columns(form.name, given) if name not in named_by_user]
        if not left:
            return None
        closer = {name: kind for name in left if (kind := closer_kind(name, row)) is not None}
        given = tuple({**columns, **closer}.items()) if closer else given
    return _overlooked(form.name, given, frozenset(named_by_user))


@lru_cache(maxsize=4096)
def _overlooked(form_name: str, given: tuple[tuple[str, str], ...], named_by_user: frozenset[str]) -> str | None:
    form, columns = find_form(form_name), dict(given)
    for name in left_columns(form_name, given):
        if name not in named_by_user:
            leave_out = f"{set_option(f'ignore_columns=[{named(name)}]')} leaves it out"
            reason = _of_another_form(name, form, columns, leave_out) or _of_media(name, form, columns, leave_out)
            if reason is not None:
                return reason
    return None


def _of_another_form(name: str, form: Form, columns: Columns, leave_out: str) -> str | None:
    """Reason why a column may not be left out that changes what the others mean."""
    if name in OF_A_PREFERENCE and (form is not MESSAGES or name not in dialogues.PREFERENCES):
        remedy = "--form preferences reads chosen and rejected, and a prompt"
        if form is MESSAGES:
            answer = f'[{{role: "assistant", content: .{name}}}]'
            sides = f"prompt: .messages[:-1], chosen: .messages[-1:], rejected: {answer}"
            sides = f"chosen: .messages, rejected: .{name}" if name.endswith("messages") else sides
            remedy = f"{remedy}: jq -c '. + {{{sides}}} | del(.messages, .{name})'"
        return f"{form.title} does not read the column {name} of a preference; {remedy}; {leave_out}"
    if columns[name] == PLACES:
        marks = " and ".join(PLACE_COLUMNS[name])
        write = f"write its values into the text in place of {marks}"
        return f"the column {name} holds what {marks} stand for and is not read; {write}, or {leave_out}"
    return _of_a_question(name, form, columns, leave_out) or _of_a_conversation(name, form, columns, leave_out)


def _of_a_question(name: str, form: Form, columns: Columns, leave_out: str) -> str | None:
    """Reason why a column may not be left out without which a question, or its answer, is not there."""
    both = [[each for each in columns if each in names] for names in (dialogues.QUESTIONS, dialogues.ANSWERS)]
    if form.name == "caption" and all(both) and any(name in names for names in both):
        asked, answered = (names[0] for names in both)
        leave_out = f"{set_option(f'ignore_columns=[{asked}, {answered}]')} leaves them out"
        return f"{form.title} does not read {asked} and {answered}; --form question_answer does, and {leave_out}"
    is_choice = form.name == "question_answer" and _is_choice(name, columns)
    if (place := _BELONGS.get(form.name)) and (name in place[1] or is_choice):
        return f"the column {named(name)} is not read by {form.title}; write it into the {place[0]}, or {leave_out}"
    return None


def _of_a_conversation(name: str, form: Form, columns: Columns, leave_out: str) -> str | None:
    """Reason why a column may not be left out that is part of a conversation, or says which answers are bad."""
    if form.name not in _CONVERSATIONS or (form is MESSAGES and "messages" not in columns):
        return None
    if name in _VERDICTS and columns[name] == FLAG:
        all_learnt = "says which answers are bad, and all would be learnt; filter the rows"
        return f"the column {name} {all_learnt}, or {leave_out}"
    if (other := _OF_A_CONVERSATION.get(name)) is None:
        return None
    remedy = f"write it into the {'prompt' if form.name == 'prompt_completion' else 'messages'}"
    if other != name and other not in columns and form.reads(other, columns):
        remedy = f"{set_option(f'rename_columns={{{name}: {other}}}')} reads it"
    return f"the column {name} of a conversation is not read by {form.title}; {remedy}, or {leave_out}"


def _is_choice(name: str, columns: Columns) -> bool:
    """Whether a column holds one choice of a question: there are several."""
    return bool(_CHOICE.fullmatch(name)) and sum(_CHOICE.fullmatch(each) is not None for each in columns) > 1


def _of_media(name: str, form: Form, columns: Columns, leave_out: str) -> str | None:
    """Reason why a column may not be left out that holds media or turns, or says how those beside it are shown."""
    if _CUTS.fullmatch(name) and any(form.reads(video, columns) for video in VIDEO_COLUMNS if video in columns):
        rename = f"rename it to {'end' if _ENDS.search(name) else 'start'}, in seconds from the first frame"
        is_other = _PAIRS.search(name) or "frame" in name.lower()
        rename = "give start and end, in seconds from the first frame" if is_other else rename
        return f"the column {name} beside a video is not read, so all of it would be shown; {rename}, or {leave_out}"
    shows = any(_reads_media(form, each, columns) for each in columns)
    if name in _OF_A_PART and shows:
        how = NOT_FOLLOWED.get(name, "a setting belongs into the part of its image or video in messages")
        return f"the column {name} beside images or videos is not read: {how}; {leave_out}"
    # Beside media that are read, the name of a file is that of theirs.
    is_media = columns[name] == MEDIA and not (shows and name in _NAMES_OF_FILES)
    if is_media or (columns[name] not in (NUMBER, FLAG) and is_telling(name)):
        return f"the column {named(name)} is not read by {form.title}; {_remedy(name, form, columns, leave_out)}"
    return None


def _reads_media(form: Form, column: str, columns: Columns) -> bool:
    is_media = column in MEDIA_COLUMNS or column in PATHS or numbered_column(column) is not None
    return is_media and form.reads(column, columns)


def _remedy(column: str, form: Form, columns: Columns, leave_out: str) -> str:
    """Remedy for a column that a form does not read; ``columns`` are all that stand beside it."""
    others = [other for other in FORMS if other is not form and other.reads(column, columns)]
    fitting = [other.name for other in others if other.fits(columns)]
    if fitting:
        return f"--form {' or '.join(fitting)} reads it, and {leave_out}"
    kind: MediumKind = "video" if _MOVING.search(column) else "image"
    several = [name for name, holds in columns.items() if holds == MEDIA and not _SOUND.search(name)]
    if len(several) > 1 and column in several and not any(_MOVING.search(name) for name in several):
        pairs = ", ".join(f"{named(name)}: image_{i}" for i, name in enumerate(several, 1))
        return f"{set_option(f'rename_columns={{{pairs}}}')} reads all, and {leave_out}"
    alone = not any(name in columns for name in COLUMNS[kind])
    as_file = {"file_name" if name == column else name: holds for name, holds in columns.items()}
    if column in _NAMES_OF_FILES and alone and (read := detect(as_file)) is not None and read.name == "caption":
        return f"{set_option(f'rename_columns={{{named(column)}: file_name}}')} reads it, and {leave_out}"
    if columns[column] == MEDIA and alone and not _SOUND.search(column):
        name = COLUMNS[kind][1 if column.endswith("s") else 0]
        if form.reads(name, {**columns, name: MEDIA}):
            return f"{set_option(f'rename_columns={{{named(column)}: {name}}}')} reads it, and {leave_out}"
    if others:
        names = ", ".join(other.name for other in others)
        return f"the forms {names} read it beside other columns of theirs, and {leave_out}"
    return f"no form but one of your own (--form package.module:function) reads it, and {leave_out}"
