"""Which form a file's rows have, told by their columns; and columns that nobody may overlook."""

from __future__ import annotations

import re
from collections.abc import Collection

from preshard.packer_service.ingest.source.forms import (
    alpaca,
    caption,
    chat,
    interleaved,
    prompt_completion,
    sharegpt,
    text,
)
from preshard.packer_service.ingest.source.forms.custom import custom_form, is_custom
from preshard.packer_service.ingest.source.forms.form import Form
from preshard.schemas.errors import ConfigError

AUTO = "auto"
"""Asks for the form that the columns show."""

FORMS: tuple[Form, ...] = (
    sharegpt.FORM,
    chat.FORM,
    prompt_completion.FORM,
    alpaca.FORM,
    interleaved.FORM,
    caption.FORM,
    text.FORM,
)
"""Every form; of several that fit a file, the first is taken."""

_TELLING = re.compile(
    r"(?i)^(.*[_.])?(image|img|picture|photo|video|clip|audio|speech|sound|message|conversation|dialog|dialogue|chat|turn"
    r"|jpe?g|png|webp|gif|mp4|webm|mkv|mov|wav|mp3|flac|medi)"
    r"(s|a|um)?([_.](paths?|urls?|uris?|files?|names?|bytes|lists?))?$"
)


def detect(columns: Collection[str]) -> Form:
    """The form of a file with these columns; without a better one that of ``messages``, which names what it misses."""
    return next((form for form in FORMS if form.fits(columns)), chat.FORM)


def has_form(columns: Collection[str]) -> bool:
    """Whether these columns are those of some form."""
    return any(form.fits(columns) for form in FORMS) or "text" in columns


def find_form(name: str) -> Form:
    """A form by its name.

    Raises:
        ConfigError: there is none.
    """
    if is_custom(name):
        return custom_form(name)
    found = next((form for form in FORMS if form.name == name), None)
    if found is None:
        legal = ", ".join(form.name for form in FORMS)
        raise ConfigError(f"--form {name}: no such form; legal are {AUTO}, {legal} and package.module:function")
    return found


def is_telling(column: str) -> bool:
    """Whether a column's name says that it holds media or conversation, which must not be left out in silence."""
    return bool(_TELLING.match(column))


def remedy(column: str, form: Form, columns: Collection[str]) -> str:
    """What reads a column that a form does not; ``columns`` are all that stand beside it."""
    others = [other for other in FORMS if other is not form and other.reads(column)]
    fitting = [other.name for other in others if other.fits(columns)]
    leave_out = f"--set 'ignore_columns=[{column}]' leaves it out"
    if fitting:
        return f"--form {' or '.join(fitting)} reads it, and {leave_out}"
    if others:
        names = ", ".join(other.name for other in others)
        return f"the forms {names} read it beside other columns of theirs, and {leave_out}"
    return f"no form but one of your own (--form package.module:function) reads it, and {leave_out}"
