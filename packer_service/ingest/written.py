"""A text with images and videos in place, to tokens: placeholders become what a family writes instead of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float32, Int32, Int64

from preshard.packer_service.ingest.families.family import Mark, Piece, Rows, Token
from preshard.packer_service.ingest.text.chat_template import LossSpan, Span
from preshard.packer_service.ingest.text.encoded import EncodedText
from preshard.schemas.errors import DocumentError
from preshard.schemas.sequence import NOT_POOLED

MAX_TOKENS = 2**22
"""Most tokens of a document before it is cut or split: at some 60 bytes per token, a quarter of a GiB."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """What replaces one placeholder in a text.

    ``pieces`` number their units from ``first_unit`` of the document on. ``opening`` and ``closing`` are marks that
    belong to the first and last unit if the text has them directly beside it; with ``once``, the pieces' own marks are
    left out then.
    """

    placeholder: str
    pieces: tuple[Piece, ...]
    first_unit: int
    opening: str = ""
    closing: str = ""
    once: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class MarkedPlace:
    """Characters of a text that one token of a unit stands for, which is repeated ``count`` times."""

    start: int
    end: int
    token: Token
    unit: int
    count: int
    is_row: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenText:
    """A text in which every token of a unit is spelled once, and what carries loss in it."""

    text: str
    loss: tuple[LossSpan, ...]
    places: tuple[MarkedPlace, ...]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenRun:
    """Consecutive tokens: ids, what the loss of each counts, and the unit of each row, -1 elsewhere.

    ``units`` are the numbers of the units inside, ascending, and ``edges`` the half-open range of each one's tokens.
    """

    ids: Int32[np.ndarray, "tokens"]
    loss: Float32[np.ndarray, "tokens"]
    unit_ids: Int32[np.ndarray, "tokens"]
    units: Int64[np.ndarray, "units"]
    edges: Int64[np.ndarray, "units 2"]

    def __len__(self) -> int:
        return len(self.ids)


def write(
    text: str,
    loss: Sequence[LossSpan],
    slots: Sequence[Slot],
    spell: Callable[[Token], str],
    placeholders: Sequence[str],
) -> WrittenText:
    """Puts images and videos into a text.

    Args:
        text: the text with a placeholder for each slot, in order.
        loss: its characters that carry loss.
        slots: what replaces the placeholders.
        spell: a special token as text.
        placeholders: every placeholder that there is, also those of none of the slots.

    Raises:
        DocumentError: ``bad_row``: the text has other placeholders than the slots.
    """
    out: list[str] = []
    places: list[MarkedPlace] = []
    moved: list[LossSpan] = []
    done = length = 0
    for slot, (start, end) in zip(slots, _found(text, slots, placeholders), strict=True):
        moved += _moved(loss, done, start, length - done)
        out.append(text[done:start])
        length += start - done
        opens = bool(slot.opening) and text.endswith(slot.opening, done, start)
        closes = bool(slot.closing) and text.startswith(slot.closing, end)
        pieces = _without_marks(slot, opens, closes, spell)
        written, own = _spelled(pieces, length, slot.first_unit, spell)
        if opens and _lacks(pieces[0], slot.opening, spell):
            own.insert(0, _mark(slot.opening, length - len(slot.opening), own[0].unit))
        if closes and _lacks(pieces[-1], slot.closing, spell):
            own.append(_mark(slot.closing, length + len(written), own[-1].unit))
        out.append(written)
        places += own
        length, done = length + len(written), end
    moved += _moved(loss, done, len(text), length - done)
    return WrittenText(text="".join([*out, text[done:]]), loss=tuple(moved), places=tuple(places))


def _found(text: str, slots: Sequence[Slot], placeholders: Sequence[str]) -> list[Span]:
    """Where the placeholders stand, which must be those of the slots."""
    names = sorted(placeholders, key=len, reverse=True)
    found = list(re.finditer("|".join(map(re.escape, names)), text)) if names else []
    if [one.group() for one in found] != [slot.placeholder for slot in slots]:
        raise DocumentError(
            "bad_row",
            f"the chat template writes {len(found)} placeholders of images or videos ({', '.join(names)}) where the "
            f"row shows {len(slots)}, or in another order; name one that shows each once as chat_template",
        )
    return [one.span() for one in found]


def _moved(loss: Sequence[LossSpan], start: int, end: int, by: int) -> Iterator[LossSpan]:
    """The parts of spans inside ``[start, end)``, moved."""
    for first, last, weight in loss:
        if max(first, start) < min(last, end):
            yield max(first, start) + by, min(last, end) + by, weight


def _without_marks(slot: Slot, opens: bool, closes: bool, spell: Callable[[Token], str]) -> tuple[Piece, ...]:
    pieces = slot.pieces
    if slot.once and opens and _is(pieces[0], slot.opening, spell):
        pieces = pieces[1:]
    if slot.once and closes and _is(pieces[-1], slot.closing, spell):
        pieces = pieces[:-1]
    return pieces


def _is(piece: Piece, name: str, spell: Callable[[Token], str]) -> bool:
    return isinstance(piece, Mark) and spell(piece.token) == name


def _lacks(piece: Piece, name: str, spell: Callable[[Token], str]) -> bool:
    """Whether a unit begins or ends with this piece, and not with the mark itself."""
    return not isinstance(piece, str) and not _is(piece, name, spell)


def _spelled(
    pieces: Sequence[Piece], at: int, first_unit: int, spell: Callable[[Token], str]
) -> tuple[str, list[MarkedPlace]]:
    out: list[str] = []
    places: list[MarkedPlace] = []
    for piece in pieces:
        name = piece if isinstance(piece, str) else spell(piece.token)
        if not isinstance(piece, str):
            count, is_row = (piece.count, True) if isinstance(piece, Rows) else (1, False)
            end, unit = at + len(name), first_unit + piece.unit
            places.append(MarkedPlace(start=at, end=end, token=piece.token, unit=unit, count=count, is_row=is_row))
        out.append(name)
        at += len(name)
    return "".join(out), places


def _mark(name: str, start: int, unit: int) -> MarkedPlace:
    return MarkedPlace(start=start, end=start + len(name), token=name, unit=unit, count=1, is_row=False)


def run_of(written: WrittenText, encoded: EncodedText, *, as_marked: bool) -> TokenRun:
    """The tokens of a written text, rows repeated.

    Args:
        written: the text.
        encoded: its tokens.
        as_marked: whether spans of loss count as in ``transformers``' masks of assistants.

    Raises:
        DocumentError: ``too_long``.
    """
    loss = np.zeros(len(encoded.ids), np.float32)
    for start, end, weight in written.loss:
        first, behind = encoded.marked(start, end) if as_marked else encoded.over(start, end)
        loss[first:behind] = weight
    at = np.array([encoded.at(place.start) for place in written.places], np.int64)
    counts = np.ones(len(encoded.ids), np.int64)
    unit_ids = np.full(len(encoded.ids), NOT_POOLED, np.int32)
    for index, place in zip(at, written.places, strict=True):
        assert encoded.starts[index] <= place.start < place.end <= encoded.ends[index], "a mark is one token"
        counts[index], loss[index] = place.count, 0
        unit_ids[index] = place.unit if place.is_row else NOT_POOLED
    ends = np.cumsum(counts)
    if len(ends) and ends[-1] > MAX_TOKENS:
        raise too_long(int(ends[-1]))
    units, numbers = np.unique([place.unit for place in written.places], return_inverse=True)
    edges = np.tile(np.array([MAX_TOKENS, 0], np.int64), (len(units), 1))
    np.minimum.at(edges[:, 0], numbers, ends[at] - counts[at])
    np.maximum.at(edges[:, 1], numbers, ends[at])
    return TokenRun(
        ids=np.repeat(encoded.ids, counts),
        loss=np.repeat(loss, counts),
        unit_ids=np.repeat(unit_ids, counts),
        units=units.astype(np.int64),
        edges=edges,
    )


def too_long(tokens: int) -> DocumentError:
    """More tokens than a document may have before it is cut or split."""
    limit = f"more than the limit of {MAX_TOKENS} for one document; split it into several"
    return DocumentError("too_long", f"has at least {tokens} tokens, {limit}")
