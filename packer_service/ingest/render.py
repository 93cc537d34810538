"""A document to the token arrays that it fills in a pack."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Int32

from packer_service.ingest.document import Document, Medium, Message, Part
from packer_service.ingest.families.family import Placement, Rows, UnitShape
from packer_service.ingest.media.shape import PlacedMedium, ProbedMedium
from packer_service.ingest.text.long_text import text_parts
from packer_service.ingest.text.tokenizer import Tokenizer
from packer_service.packs.rendered import RenderedDocument, branch_positions, groups_of_units, shifted_labels
from packer_service.packs.units import Units
from schemas.errors import DocumentError
from schemas.manifest import UNIT_KINDS
from schemas.sequence import IGNORE_INDEX, NOT_POOLED

MAX_TOKENS = 2**22
"""Most tokens of a document before it is cut or split: at some 60 bytes per token, a quarter of a GiB."""


def render(
    document: Document,
    placed: Sequence[PlacedMedium],
    tokenizer: Tokenizer,
    *,
    bidirectional: str = "within_image",
    annotation_weight: str = "none",
) -> RenderedDocument:
    """Renders a document as token arrays.

    Text is ``BOS text EOS`` with loss on all of it; interleaved text and media are the same, with a prompt's parts in
    front of them that carry no loss. A conversation is ``BOS`` and its turns, with loss on the
    assistant's content and the token that ends it. Annotations follow the shared prefix, ``BOS`` and the shared media,
    one after the other; each continues the prefix's positions. A label is the next token of the same branch, so the
    last token of a prefix, of an annotation or of a document has none.

    Args:
        document: the document.
        placed: what each of ``document.media()`` becomes, in order.
        tokenizer: encodes text and has the marks around it.
        bidirectional: which image tokens see each other, see :func:`~packer_service.packs.rendered.groups_of_units`.
        annotation_weight: ``none``, or ``sqrt`` to weigh each of n annotations by 1/sqrt(n).

    Raises:
        DocumentError: ``too_long``: it has more than ``MAX_TOKENS`` tokens; ``bad_row``: it holds what only a chat
            template can write.
    """
    _refuse_what_needs_a_template(document)
    placements = iter([medium.placement for medium in placed])
    stream = _Stream(tokenizer=tokenizer, bidirectional=bidirectional, placements=placements)
    stream.tokens_of(tokenizer.bos, loss=False)
    if document.text is not None:
        stream.text(document.text, loss=True)
        stream.tokens_of([tokenizer.entry.eos_id], loss=True)
    stream.parts(document.prompt, loss=False)
    if document.interleaved is not None:
        stream.parts(document.interleaved, loss=True)
        stream.tokens_of([tokenizer.entry.eos_id], loss=True)
    for _ in document.shared:
        stream.next_medium()
    n_shared = stream.length if document.annotated else 0
    for number, branch in enumerate(document.branches, start=1):
        stream.branch = number if document.annotated else 0
        stream.turns(branch)
    n_branches = len(document.branches) if document.annotated else 0
    weight = 1 / math.sqrt(n_branches) if annotation_weight == "sqrt" and n_branches else 1.0
    media = tuple(zip(document.media(), placed, strict=True))
    return stream.finish(media, n_shared=n_shared, n_branches=n_branches, weight=weight)


def _refuse_what_needs_a_template(document: Document) -> None:
    """The chat forms written here have no tools and no other roles: nothing of a row may be left out in silence."""
    for name in ("tools", "documents", "template_kwargs"):
        if getattr(document, name) is not None:
            raise DocumentError("bad_row", f"{name} cannot be written without a chat template")
    for branch, messages in enumerate(document.branches):
        for number, message in enumerate(messages):
            where = f"annotations[{branch}][{number}]" if document.annotated else f"messages[{number}]"
            if message.role in ("developer", "tool"):
                raise DocumentError("bad_row", f"{where}.role {message.role} cannot be written without a chat template")
            if message.fields:
                name = message.fields[0][0]
                raise DocumentError("bad_row", f"{where}.{name} cannot be written without a chat template")


@dataclass(kw_only=True)
class _Stream:
    """Tokens as they are written, chunk by chunk: each with whether it carries loss, its branch and its unit."""

    tokenizer: Tokenizer
    bidirectional: str
    placements: Iterator[Placement]
    branch: int = 0
    length: int = 0
    chunks: list[tuple[Sequence[int] | Int32[np.ndarray, "chunk"], bool, int, int]] = field(default_factory=list)
    units: list[tuple[UnitShape, int, int]] = field(default_factory=list)
    """Shape, first token and the one behind the last."""

    def tokens_of(self, ids: Sequence[int] | Int32[np.ndarray, "chunk"], *, loss: bool, unit: int = NOT_POOLED) -> None:
        if len(ids):
            self.chunks.append((ids, loss, self.branch, unit))
            self.length += len(ids)

    def text(self, text: str, *, loss: bool) -> None:
        for part in text_parts(text):
            self.tokens_of(np.array(self.tokenizer.encode(part), np.int32), loss=loss)
            if self.length > MAX_TOKENS:  # checked in between, so that no text is encoded to its end in vain
                limit = f"more than the limit of {MAX_TOKENS} for one document; split it into several"
                raise DocumentError("too_long", f"has at least {self.length} tokens, {limit}")

    def turns(self, messages: Iterable[Message]) -> None:
        chat = self.tokenizer.chat
        for message in messages:
            loss = message.carries_loss
            self.tokens_of(chat.before[message.role], loss=False)
            self.parts(message.parts, loss=loss)
            self.tokens_of(chat.end[message.role], loss=loss)
            self.tokens_of(chat.after[message.role], loss=False)

    def parts(self, parts: Iterable[Part], *, loss: bool) -> None:
        for part in parts:
            if isinstance(part, Medium):
                self.next_medium()
            else:
                self.text(part, loss=loss)

    def next_medium(self) -> None:
        placement, first = next(self.placements), len(self.units)
        edges = [[0, 0] for _ in placement.units]
        for piece in placement.pieces:
            if isinstance(piece, str):
                self.tokens_of(self.tokenizer.encode(piece), loss=False)
                continue
            assert isinstance(piece.token, int), "only the generic way is rendered here, and its marks are ids"
            start, rows = self.length, isinstance(piece, Rows)
            ids = [piece.token] * (piece.count if isinstance(piece, Rows) else 1)
            self.tokens_of(ids, loss=False, unit=first + piece.unit if rows else NOT_POOLED)
            edge = edges[piece.unit]
            edge[:] = edge[0] if edge[1] else start, self.length
        self.units += [(shape, edge[0], edge[1]) for shape, edge in zip(placement.units, edges, strict=True)]

    def finish(
        self, media: tuple[ProbedMedium, ...], *, n_shared: int, n_branches: int, weight: float
    ) -> RenderedDocument:
        lengths = [len(ids) for ids, *_ in self.chunks]
        tokens = np.concatenate([np.zeros(0, np.int32), *(np.asarray(ids, np.int32) for ids, *_ in self.chunks)])
        loss = np.repeat(np.array([chunk[1] for chunk in self.chunks], np.bool_), lengths)
        branch_ids = np.repeat(np.array([chunk[2] for chunk in self.chunks], np.int32), lengths)
        unit_ids = np.repeat(np.array([chunk[3] for chunk in self.chunks], np.int32), lengths)
        labels = shifted_labels(tokens, loss, branch_ids)
        return RenderedDocument(
            tokens=tokens,
            labels=labels,
            loss_weights=np.where(labels == IGNORE_INDEX, np.float32(0), np.float32(weight)),
            position_ids=branch_positions(branch_ids),
            branch_ids=branch_ids,
            group_ids=groups_of_units(unit_ids, self.bidirectional),
            unit_ids=unit_ids,
            units=self._units(),
            media=media,
            n_shared=n_shared,
            n_branches=n_branches,
        )

    def _units(self) -> Units:
        shapes = [shape for shape, *_ in self.units]
        edges = np.array([edge for _, *edge in self.units], np.int64).reshape(-1, 2)
        crops = np.array([len(shape.crops) for shape in shapes], np.int64)
        return Units(
            kinds=np.array([UNIT_KINDS.index(shape.kind) for shape in shapes], np.int64),
            edges=edges,
            grids=np.array([shape.grid for shape in shapes], np.int64).reshape(-1, 3),
            patches=np.array([shape.patches for shape in shapes], np.int64),
            rows=np.array([shape.rows for shape in shapes], np.int64),
            crops=crops,
            loads=np.array([shape.load for shape in shapes], np.int64),
            numbers=np.arange(len(shapes)),
        )
