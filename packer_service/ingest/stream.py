"""The tokens of a document as they are written one after the other, and the arrays that come of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32, Int32, Int64

from preshard.packer_service.ingest.families.family import Placement, Rows
from preshard.packer_service.ingest.text.chat_template import ChatText
from preshard.packer_service.ingest.text.encoded import EncodedText, text_parts
from preshard.packer_service.ingest.text.tokenizer import Tokenizer
from preshard.packer_service.packs.units import Units
from preshard.schemas.errors import DocumentError
from preshard.schemas.manifest import UNIT_KINDS
from preshard.schemas.sequence import NOT_POOLED

MAX_TOKENS = 2**24
"""Most tokens of a document before it is cut or split: at some 60 bytes per token, a GiB."""

Ids = Sequence[int] | Int32[np.ndarray, "chunk"]
_Chunk = tuple[Ids, float | Float32[np.ndarray, "chunk"], int, int | Int32[np.ndarray, "chunk"]]
"""Ids, with what the loss of each counts, their branch, and the unit that they are rows of."""


def too_long(tokens: int) -> DocumentError:
    """Error of a document with more tokens than one may have before it is cut or split."""
    limit = f"more than the limit of {MAX_TOKENS} for one document; split it into several"
    return DocumentError("too_long", f"has at least {tokens} tokens, {limit}")


def encoded_parts(tokenizer: Tokenizer, text: str, before: int) -> Iterator[Int32[np.ndarray, "part"]]:
    """The tokens of a text part by part, behind so many tokens; none of them becomes a special token.

    Raises:
        DocumentError: ``too_long``: found in between, so that no text is encoded to its end in vain.
    """
    length = before
    for part in text_parts(text):
        ids = tokenizer.encode(part)
        length += len(ids)
        if length > MAX_TOKENS:
            raise too_long(length)
        yield ids


class MarkedPlace(NamedTuple):
    """Characters of a text that one token of a unit stands for, which is written ``repeats`` times."""

    start: int
    end: int
    unit: int
    repeats: int
    is_row: bool


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class TokenRun:
    """Consecutive tokens: ids, what the loss of each counts, and the unit of each row, -1 elsewhere.

    ``edges`` are the half-open ranges of the units' tokens, in the order of the units.
    """

    ids: Int32[np.ndarray, "tokens"]
    loss: Float32[np.ndarray, "tokens"]
    unit_ids: Int32[np.ndarray, "tokens"]
    edges: Int64[np.ndarray, "units 2"]

    def __len__(self) -> int:
        return len(self.ids)

    def part(self, start: int, end: int, units: slice) -> TokenRun:
        """Some of the tokens, and of the units that lie in them."""
        ids, loss, unit_ids = (array[start:end] for array in (self.ids, self.loss, self.unit_ids))
        return TokenRun(ids=ids, loss=loss, unit_ids=unit_ids, edges=self.edges[units] - start)


def run_of(chat: ChatText, places: Sequence[MarkedPlace], encoded: EncodedText) -> TokenRun:
    """The tokens of a text with images and videos in place, rows repeated.

    Args:
        chat: the text, and what carries loss in it.
        places: the tokens of units in it.
        encoded: its tokens.

    Raises:
        DocumentError: ``too_long``.
    """
    loss = np.zeros(len(encoded.ids), np.float32)
    for start, end, weight in chat.loss:
        first, behind = encoded.marked(start, end) if chat.marked else encoded.over(start, end)
        loss[first:behind] = weight
    at = np.array([encoded.at(place.start) for place in places], np.int64)
    counts = np.ones(len(encoded.ids), np.int64)
    unit_ids = np.full(len(encoded.ids), NOT_POOLED, np.int32)
    for index, place in zip(at, places, strict=True):
        assert encoded.starts[index] <= place.start < place.end <= encoded.ends[index], "a mark is one token"
        counts[index], loss[index] = place.repeats, 0
        unit_ids[index] = place.unit if place.is_row else NOT_POOLED
    ends = np.cumsum(counts)
    if len(ends) and ends[-1] > MAX_TOKENS:
        raise too_long(int(ends[-1]))
    units, numbers = np.unique([place.unit for place in places], return_inverse=True)
    edges = np.tile(np.array([MAX_TOKENS, 0], np.int64), (len(units), 1))
    np.minimum.at(edges[:, 0], numbers, ends[at] - counts[at])
    np.maximum.at(edges[:, 1], numbers, ends[at])
    ids, loss, unit_ids = (np.repeat(array, counts) for array in (encoded.ids, loss, unit_ids))
    return TokenRun(ids=ids, loss=loss, unit_ids=unit_ids, edges=edges)


class TokenStream:
    """Collects tokens with what their loss counts, their branch and their unit. ``branch`` is that of the next."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.branch = self.length = 0
        self._chunks: list[_Chunk] = []
        self._edges: list[tuple[int, int]] = []

    def tokens_of(self, ids: Ids, *, loss: float, unit: int = NOT_POOLED) -> None:
        """Tokens by their ids; ``loss`` is what each counts, 0 for none."""
        self._add(ids, loss, unit)

    def text(self, text: str, *, loss: float) -> None:
        """A text, none of which becomes a special token.

        Raises:
            DocumentError: ``too_long``.
        """
        for ids in encoded_parts(self.tokenizer, text, self.length):
            self._add(ids, loss, NOT_POOLED)

    def placement(self, placement: Placement) -> None:
        """An image or video as its family writes it, with the marks that belong around it."""
        first, own = len(self._edges), dict[int, tuple[int, int]]()
        for piece in placement.pieces:
            started = self.length
            if isinstance(piece, str):
                self.text(piece, loss=0.0)
                continue
            count, unit = (piece.count, first + piece.unit) if isinstance(piece, Rows) else (1, NOT_POOLED)
            self.tokens_of([self.tokenizer.token_id(piece.token)] * count, loss=0.0, unit=unit)
            own[piece.unit] = own.get(piece.unit, (started, 0))[0], self.length
        self._edges += [own[unit] for unit in range(len(placement.units))]

    def run(self, run: TokenRun) -> None:
        """Tokens that are written already, with units that follow those before.

        Raises:
            DocumentError: ``too_long``.
        """
        self._edges += [(start + self.length, end + self.length) for start, end in run.edges.tolist()]
        self._add(run.ids, run.loss, run.unit_ids)
        if self.length > MAX_TOKENS:
            raise too_long(self.length)

    def _add(self, ids: Ids, loss: float | np.ndarray, unit: int | np.ndarray) -> None:
        if len(ids):
            self._chunks.append((ids, loss, self.branch, unit))
            self.length += len(ids)

    def arrays(
        self,
    ) -> tuple[
        Int32[np.ndarray, "doc"], Float32[np.ndarray, "doc"], Int32[np.ndarray, "doc"], Int32[np.ndarray, "doc"]
    ]:
        """Ids, what the loss of each token counts, and its branch and unit."""
        chunks = self._chunks

        def joined(column: int, dtype: type) -> np.ndarray:
            each: list[np.ndarray] = [np.broadcast_to(np.asarray(c[column], dtype), len(c[0])) for c in chunks]
            return np.concatenate([np.zeros(0, dtype), *each])

        return joined(0, np.int32), joined(1, np.float32), joined(2, np.int32), joined(3, np.int32)

    def units_of(self, placements: Sequence[Placement]) -> Units:
        """The units of everything written, of these images and videos."""
        shapes = [unit for placement in placements for unit in placement.units]
        assert len(self._edges) == len(shapes), "a unit was not written, or written twice"

        def each(values: Iterable[int]) -> np.ndarray:
            return np.fromiter(values, np.int64, len(shapes))

        return Units(
            kinds=each(UNIT_KINDS.index(unit.kind) for unit in shapes),
            edges=np.array(self._edges, np.int64).reshape(-1, 2),
            grids=np.array([unit.grid for unit in shapes], np.int64).reshape(-1, 3),
            patches=each(unit.patches for unit in shapes),
            rows=each(unit.rows for unit in shapes),
            crops=each(len(unit.crops) for unit in shapes),
            loads=each(unit.load for unit in shapes),
            media=each(number for number, placement in enumerate(placements) for _ in placement.units),
            time_steps=np.array([unit.time_step for unit in shapes], np.float64),
            numbers=np.arange(len(shapes)),
        )
