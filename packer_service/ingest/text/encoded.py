"""Tokens of a text in which special tokens are spelled, and the characters that each of them stands for."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Int32, Int64

if TYPE_CHECKING:
    from tokenizers import Tokenizer

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


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class EncodedText:
    """Token ids, and the characters ``[start, end)`` of each; both ascend."""

    ids: Int32[np.ndarray, "tokens"]
    starts: Int64[np.ndarray, "tokens"]
    ends: Int64[np.ndarray, "tokens"]

    def at(self, character: int) -> int:
        """The first token that stands for a character, or for one after it if none does."""
        return int(np.searchsorted(self.ends, character, side="right"))

    def over(self, start: int, end: int) -> tuple[int, int]:
        """The tokens that stand for any of the characters ``[start, end)``, half-open."""
        return self.at(start), int(np.searchsorted(self.starts, end, side="left"))

    def marked(self, start: int, end: int) -> tuple[int, int]:
        """The same as ``transformers`` counts them in masks of assistants, half-open.

        It ends with the *first* token of the last character, where a character takes several.
        """
        first, behind = self.over(start, end)
        return first, min(behind, self.at(end - 1) + 1)


def encode_with_specials(tokenizer: Tokenizer, text: str, specials: re.Pattern[str] | None) -> EncodedText:
    """Encodes a text as ``transformers`` encodes a rendered conversation: what spells a special token becomes it.

    Args:
        tokenizer: the tokenizer, which adds nothing of its own.
        text: the text; one longer than :data:`~preshard.packer_service.ingest.text.encoded.PART` is encoded in parts.
        specials: matches the tokens through which no part may be cut.
    """
    ids, starts, ends, before = [], [], [], 0
    for part in _parts(text, specials):
        encoding = tokenizer.encode(part, add_special_tokens=False)
        offsets = np.array(encoding.offsets, np.int64).reshape(-1, 2) + before
        ids.append(np.array(encoding.ids, np.int32))
        starts.append(offsets[:, 0])
        ends.append(offsets[:, 1])
        before += len(part)
    return EncodedText(ids=np.concatenate(ids), starts=np.concatenate(starts), ends=np.concatenate(ends))


def _parts(text: str, specials: re.Pattern[str] | None) -> Iterator[str]:
    """The text whole, or cut before special tokens and between words.

    A tokenizer cuts a text at special tokens first, so they are the safest places. Before one that follows white space
    no cut is made, since a token may take the space before it.
    """
    if len(text) <= PART:
        yield text
        return
    edges = [0, *(found.start() for found in (specials.finditer(text) if specials else ())), len(text)]
    safe = {edge for edge in edges if edge in (0, len(text)) or not text[edge - 1].isspace()}
    for start, end in _grouped(sorted(safe)):
        yield from text_parts(text[start:end])


def _grouped(edges: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring ranges together, as long as they are no longer than a part."""
    start = edges[0]
    for edge, following in zip(edges[1:], [*edges[2:], None], strict=True):
        if following is None or following - start > PART:
            yield start, edge
            start = edge
