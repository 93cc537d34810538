"""Text as it is printed: whatever a file spells, a terminal obeys none of it, and a line has an end."""

from __future__ import annotations

import unicodedata

LONGEST_LINE = 1000
"""Characters of a line that is printed."""

TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of the text behind them."""

_OBEYED = ("Cc", "Cs", "Zl", "Zp")
"""Kinds of characters that a terminal obeys, or cannot be given: controls, halves of pairs, ends of lines."""


def plain(text: str) -> str:
    """Text in which the characters that a terminal would obey, other than line breaks and tabs, are spelled out."""
    if text.isascii() and text.isprintable():
        return text
    obeyed = {letter for letter in set(text) if unicodedata.category(letter) in _OBEYED} - {"\n", "\t"}
    return text.translate({ord(letter): ascii(letter)[1:-1] for letter in obeyed | (TURNING & set(text))})


def cut(text: str, most: int = LONGEST_LINE) -> str:
    """Text whose lines have at most so many characters."""
    if len(text) <= most:
        return text
    return "\n".join(line if len(line) <= most else f"{line[: most - 3]}..." for line in text.split("\n"))


def printable(text: str) -> str:
    """Text as errors and reports say it: spelled out, and cut line by line."""
    return cut(plain(cut(text)))


def several(number: int, what: str) -> str:
    """A number of things, in the singular or the plural."""
    ending = "es" if what.endswith(("s", "ch")) else "s"
    return f"{number:,} {what}" + ("" if number == 1 else ending)
