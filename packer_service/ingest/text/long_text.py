"""Long texts in parts, so that what a tokenizer takes of memory and time does not grow with them."""

from __future__ import annotations

from collections.abc import Iterator

PART = 2**16
"""Most characters that a tokenizer gets at once. Tokenizers take up to 200 bytes a token, and on text without spaces
time that grows with its square."""


def text_parts(text: str) -> Iterator[str]:
    """A text in parts of at most ``PART`` characters, all of them together the text itself.

    Parts begin with the last single space that allows it: tokenizers in the manner of GPT-2 begin a token there, so
    that parts give the same tokens as the whole. Only where the last quarter of a part has none is a word cut.
    """
    start = 0
    while len(text) - start > PART:
        end = _single_space(text, start + PART * 3 // 4, start + PART)
        yield text[start:end]
        start = end
    yield text[start:]


def _single_space(text: str, low: int, high: int) -> int:
    """Place of the last space in ``[low, high)`` between two letters or digits, else ``high``."""
    at = text.rfind(" ", low, high)
    while at > low and not (text[at - 1].isalnum() and text[at + 1].isalnum()):
        at = text.rfind(" ", low, at)
    return at if at > low else high
