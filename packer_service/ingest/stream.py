"""The tokens of a document as they are written one after the other, and the arrays that come of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Int32

from preshard.packer_service.ingest.families.family import Placement, Rows, UnitShape
from preshard.packer_service.ingest.text.long_text import text_parts
from preshard.packer_service.ingest.text.tokenizer import Tokenizer
from preshard.packer_service.ingest.written import MAX_TOKENS, TokenRun, too_long
from preshard.packer_service.packs.rendered import RenderedDocument, document_positions, groups_of_units, shifted_labels
from preshard.packer_service.packs.units import Units
from preshard.schemas.manifest import UNIT_KINDS
from preshard.schemas.sequence import CAUSAL_ONLY, IGNORE_INDEX, NOT_POOLED


@dataclass(kw_only=True)
class TokenStream:
    """Collects tokens with what their loss counts, their branch and their unit.

    ``media`` is the number of the image or video that each unit belongs to.
    """

    tokenizer: Tokenizer
    units: Sequence[UnitShape]
    media: Sequence[int]
    branch: int = 0
    length: int = 0
    n_units: int = 0
    chunks: list[tuple[Sequence[int] | Int32[np.ndarray, "chunk"], float, int, int]] = field(default_factory=list)
    """Ids, with what the loss of each counts, their branch, and the unit that they are rows of."""
    runs: list[tuple[int, TokenRun]] = field(default_factory=list)
    """Chunks whose tokens differ in loss and unit, each with its first token."""
    edges: list[tuple[int, int]] = field(default_factory=list)

    def tokens_of(
        self, ids: Sequence[int] | Int32[np.ndarray, "chunk"], *, loss: float, unit: int = NOT_POOLED
    ) -> None:
        """Tokens by their ids; ``loss`` is what each counts, 0 for none."""
        if len(ids):
            self.chunks.append((ids, loss, self.branch, unit))
            self.length += len(ids)

    def text(self, text: str, *, loss: float) -> None:
        """A text, none of which becomes a special token.

        Raises:
            DocumentError: ``too_long``.
        """
        for part in text_parts(text):
            self.tokens_of(self.tokenizer.encode(part), loss=loss)
            if self.length > MAX_TOKENS:  # checked in between, so that no text is encoded to its end in vain
                raise too_long(self.length)

    def placement(self, placement: Placement) -> None:
        """An image or video as its family writes it, with the marks that belong around it."""
        first, started = self.n_units, self.length
        self.n_units += len(placement.units)
        own: dict[int, tuple[int, int]] = {}
        for piece in placement.pieces:
            started = self.length
            if isinstance(piece, str):
                self.text(piece, loss=0.0)
                continue
            count, unit = (piece.count, first + piece.unit) if isinstance(piece, Rows) else (1, NOT_POOLED)
            self.tokens_of([self.tokenizer.token_id(piece.token)] * count, loss=0.0, unit=unit)
            own[piece.unit] = own.get(piece.unit, (started, 0))[0], self.length
        self.edges += [own[unit] for unit in range(len(placement.units))]

    def run(self, run: TokenRun) -> None:
        """Tokens that are written already, with units that follow those before."""
        self.chunks.append((run.ids, 0.0, self.branch, NOT_POOLED))
        self.runs.append((self.length, run))
        self.edges += [(start + self.length, end + self.length) for start, end in run.edges.tolist()]
        self.n_units += len(run.edges)
        self.length += len(run)
        if self.length > MAX_TOKENS:
            raise too_long(self.length)

    def finish(
        self,
        group_tokens: Iterable[int] | None,
        bidirectional: str,
        *,
        weight: float,
        axes: int,
        merge: int,
        **others: Any,
    ) -> RenderedDocument:
        """The arrays of everything written.

        Args:
            group_tokens: ids that see each other in both directions in the whole document; None if ``bidirectional``
                decides.
            bidirectional: as in the configuration.
            weight: of the document, by which that of each label is multiplied.
            axes: of the positions, see :func:`~preshard.packer_service.packs.rendered.document_positions`.
            merge: see there.
            others: the fields of the document that tokens do not decide.
        """
        chunks = self.chunks
        lengths = [len(ids) for ids, *_ in chunks]
        tokens = np.concatenate([np.zeros(0, np.int32), *(np.asarray(ids, np.int32) for ids, *_ in chunks)])
        loss = np.repeat(np.array([chunk[1] for chunk in chunks], np.float32), lengths)
        branch_ids = np.repeat(np.array([chunk[2] for chunk in chunks], np.int32), lengths)
        unit_ids = np.repeat(np.array([chunk[3] for chunk in chunks], np.int32), lengths)
        for start, run in self.runs:
            loss[start : start + len(run)], unit_ids[start : start + len(run)] = run.loss, run.unit_ids
        labels, units = shifted_labels(tokens, loss > 0, branch_ids), self._units()
        return RenderedDocument(
            tokens=tokens,
            labels=labels,
            loss_weights=np.where(labels == IGNORE_INDEX, np.float32(0), np.roll(loss, -1) * np.float32(weight)),
            position_ids=document_positions(branch_ids, unit_ids, units, axes=axes, merge=merge),
            branch_ids=branch_ids,
            group_ids=_groups(tokens, unit_ids, group_tokens, bidirectional),
            unit_ids=unit_ids,
            units=units,
            merge=merge,
            **others,
        )

    def _units(self) -> Units:
        shapes = self.units
        edges = np.array(self.edges, np.int64).reshape(-1, 2)
        assert len(edges) == len(shapes), "a unit was not written, or written twice"

        def each(values: Iterable[int]) -> np.ndarray:
            return np.fromiter(values, np.int64, len(shapes))

        return Units(
            kinds=each(UNIT_KINDS.index(unit.kind) for unit in shapes),
            edges=edges,
            grids=np.array([unit.grid for unit in shapes], np.int64).reshape(-1, 3),
            patches=each(unit.patches for unit in shapes),
            rows=each(unit.rows for unit in shapes),
            crops=each(len(unit.crops) for unit in shapes),
            loads=each(unit.load for unit in shapes),
            media=np.array(self.media, np.int64),
            time_steps=np.array([unit.time_step for unit in shapes], np.float64),
            numbers=np.arange(len(shapes)),
        )


def _groups(
    tokens: Int32[np.ndarray, "doc"],
    unit_ids: Int32[np.ndarray, "doc"],
    group_tokens: Iterable[int] | None,
    bidirectional: str,
) -> Int32[np.ndarray, "doc"]:
    if group_tokens is None:
        return groups_of_units(unit_ids, bidirectional)
    return np.where(np.isin(tokens, list(group_tokens)), 0, CAUSAL_ONLY).astype(np.int32)
