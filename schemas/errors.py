"""Every error that a user can meet, and one exception for each MUST of the format.

All of them are :class:`ValueError`: the value is wrong, and the message says which value, what is legal and what to do.
The format's rules are numbered in ``docs/format.md``; ``FORMAT_RULES`` maps a rule's code to its exception.
"""

from __future__ import annotations

from typing import ClassVar


class PreshardError(ValueError):
    """Base of all errors that preshard raises for its users."""


class ConfigError(PreshardError):
    """A configuration key, command-line option or path that cannot be used. Exit status 2."""


class PlanError(PreshardError):
    """Lengths that no plan can satisfy: a document above a budget, a window that does not divide."""


class LayoutError(PreshardError):
    """A layout was asked for that cannot exist: a degree of zero, a length that does not divide."""


class DocumentError(PreshardError):
    """One source document cannot be packed. It becomes a row of ``rejects.parquet``, never a crash.

    Args:
        code: one of :data:`REJECT_CODES`.
        message: what is wrong, for a person.
    """

    def __init__(self, code: str, message: str) -> None:
        if code not in REJECT_CODES:
            raise AssertionError(f"unknown reject code {code!r}")
        super().__init__(message)
        self.code = code


REJECT_CODES = (
    "bad_row",
    "duplicate_id",
    "empty",
    "missing_media",
    "bad_image",
    "bad_video",
    "too_long",
    "too_many_images",
    "decode_failed",
)


class FormatError(PreshardError):
    """Base of the format's broken rules.

    Args:
        where: the file, and the sample in it where there is one.
        detail: the value found and the value that the rule asks for.
    """

    rule: ClassVar[str] = ""

    def __init__(self, where: str, detail: str) -> None:
        super().__init__(f"{where}: {detail}")
        self.where = where
        self.detail = detail


FORMAT_RULES: dict[str, type[FormatError]] = {}
