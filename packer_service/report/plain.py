"""Text of a source as a terminal may show it."""

from __future__ import annotations

import unicodedata

TURNING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
"""Characters that change the direction of the text behind them."""


def plain(text: str) -> str:
    """Text in which the characters that a terminal would obey, other than line breaks and tabs, are spelled out."""
    obeyed = {letter for letter in set(text) if unicodedata.category(letter) == "Cc"} - {"\n", "\t"}
    return text.translate({ord(letter): ascii(letter)[1:-1] for letter in obeyed | (TURNING & set(text))})
