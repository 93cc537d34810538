"""Long texts in parts, so that a tokenizer's memory and time per character do not grow with them."""

from __future__ import annotations

from collections.abc import Iterator

PART = 2**16
"""Most characters given to a tokenizer at once. Tokenizers take up to 200 bytes per token, and on text without spaces
time that grows with the square of its length."""


def text_parts(text: str) -> Iterator[str]:
    """A text in parts of at most ``PART`` characters, which joined are the text itself.

    A part begins with a single space between words where there is one: tokenizers like GPT-2's begin a token there, so
    the parts give the same tokens as the whole. A word is cut only if the last quarter of a part has no such space.
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
