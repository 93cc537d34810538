"""The one way from a document to the token arrays that it fills in packs. Measuring and writing both take it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
from jaxtyping import Float32, Int32

from preshard.packer_service.ingest.document import Document, Medium, Message, Part
from preshard.packer_service.ingest.families.family import Placement
from preshard.packer_service.ingest.media.isolated import probe
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.shape import PlacedMedium, place
from preshard.packer_service.ingest.model import Renderer, configured_renderer
from preshard.packer_service.ingest.oversize import fit_pack
from preshard.packer_service.ingest.packed.pieces import stored_pieces
from preshard.packer_service.ingest.render_text import write_conversations, write_interleaved
from preshard.packer_service.ingest.render_tokens import number_answers, render_columns, render_tokens
from preshard.packer_service.ingest.source.file import SourceRow
from preshard.packer_service.ingest.stream import TokenStream, encoded_parts
from preshard.packer_service.packs.rendered import (
    RenderedDocument,
    document_positions,
    groups_of_units,
    join_pair,
    shifted_labels,
)
from preshard.packer_service.packs.units import Units
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError
from preshard.schemas.header import Kept
from preshard.schemas.sequence import CAUSAL_ONLY, IGNORE_INDEX, NOT_POOLED

NO_UNITS = Units.none()
SHARED_TOKENS = 2**16
"""Tokens of the arrays that documents share, a MiB in all; a longer document has its own."""

TEMPLATE_REMEDY = "give one as chat_template=FILE.jinja"


def render_row(row: SourceRow, config: PackConfig) -> list[RenderedDocument]:
    """The pieces of a row's document, or of one that a packed dataset holds; no pixel is decoded.

    Raises:
        DocumentError: as in :func:`render_pieces` and ``ingest.packed.pieces.stored_pieces``.
        OSError: the file system failed; no document is at fault.
    """
    if row.document is None:
        return stored_pieces(row, config)
    if isinstance(row.document, DocumentError):
        raise row.document
    return render_pieces(row.document, row.file.media, config)


def render_pieces(document: Document, folder: MediaReach, config: PackConfig) -> list[RenderedDocument]:
    """A document's pieces; no pixel is decoded. The same document and files always give the same pieces.

    Args:
        document: the document.
        folder: what its media are relative to, and what they may reach.
        config: the job's configuration.

    Raises:
        DocumentError: an image or video is missing or broken, or the document does not fit.
        OSError: the file system failed; no document is at fault.
    """
    renderer, kept = configured_renderer(config), dict(document.kept)
    document = document.with_turns(config.turns)
    if document.is_plain:
        return fit_pack(_keeping(render(renderer, document, []), kept), config)
    probed = [probe(medium, folder, config) for medium in document.media()]
    document = document.with_pages([len(shapes) for shapes in probed])
    shapes = (shape for shapes in probed for shape in shapes)
    placed = [place(renderer.family, medium, shape) for medium, shape in zip(document.media(), shapes, strict=True)]
    return fit_pack(_keeping(render(renderer, document, placed), kept), config)


def _keeping(rendered: RenderedDocument, kept: dict[str, Kept]) -> RenderedDocument:
    return replace(rendered, kept=kept) if kept else rendered


def render(renderer: Renderer, document: Document, placed: Sequence[PlacedMedium]) -> RenderedDocument:
    """Renders a document as token arrays.

    Text is ``BOS text EOS`` with loss on all of it; interleaved text and media are the same, with a prompt's parts in
    front of them that carry no loss. A conversation is what its chat template writes or, without one, ``BOS`` and its
    turns, with loss on the assistant's content and the tokens that end it. Annotations follow the shared prefix, which
    ends with the shared media, one after the other; each continues the prefix's positions. A label is the next token of
    the same branch, so the last token of a prefix, of an annotation or of a document has none. The answers of a
    preference are such branches, too.

    Args:
        renderer: how it is written.
        document: the document.
        placed: what each of ``document.media()`` becomes, in order.

    Raises:
        DocumentError: ``too_long``: it has more than ``MAX_TOKENS`` tokens; ``bad_row``: it cannot be written, or text
            in it spells a special token that its chat template would make of it; ``empty``: nothing carries loss.
    """
    if document.unfilled and renderer.family.shows:
        raise DocumentError("bad_row", _without_media(*document.unfilled))
    if document.is_plain:
        return render_plain(renderer, document.text or "")
    if document.tokens is not None:
        return render_tokens(renderer, document)
    if document.rejected is not None:
        sides = replace(document, rejected=None), replace(document.rejected, weight=document.weight)
        return join_pair(*(render(renderer, side, placed) for side in sides))
    tokenizer, family = renderer.tokenizer, renderer.family
    document, weights = number_answers(document) if document.has_values_of_turns else (document, None)
    document = document.without(renderer.config.ignore_fields)
    media = document.media()
    family.check([medium.kind for medium in media])
    placements = [medium.placement for medium in placed]
    stream, n_shared = TokenStream(tokenizer), 0
    if document.branches and tokenizer.template is not None:
        n_shared = write_conversations(renderer, document, placements, stream)
    elif document.interleaved is not None and not renderer.is_generic:
        write_interleaved(renderer, document, placements, stream)
    else:
        n_shared = write_marks(renderer, document, placements, stream)
    tokens, loss, branch_ids, unit_ids = stream.arrays()
    answers = None if weights is None else loss.astype(np.int64)
    loss = loss if weights is None or answers is None else weights[answers]
    labels, units = shifted_labels(tokens, loss > 0, branch_ids), stream.units_of(placements)
    if (labels == IGNORE_INDEX).all():
        raise DocumentError("empty", "no token carries loss")
    n_branches = len(document.branches) if document.annotated else 0
    weighs = renderer.config.annotation_weight == "sqrt" and n_branches
    weight = np.float32(document.weight / math.sqrt(n_branches) if weighs else document.weight)
    bidirectional = renderer.config.bidirectional if renderer.is_generic else family.bidirectional or "none"
    return RenderedDocument(
        tokens=tokens,
        labels=labels,
        loss_weights=np.where(labels == IGNORE_INDEX, np.float32(0), np.roll(loss, -1) * weight),
        position_ids=document_positions(branch_ids, unit_ids, units, axes=family.axes, merge=family.merge),
        branch_ids=branch_ids,
        group_ids=_groups(renderer, tokens, groups_of_units(unit_ids, bidirectional)),
        unit_ids=unit_ids,
        units=units,
        n_shared=n_shared,
        n_branches=n_branches,
        merge=family.merge,
        media=tuple(zip(media, placed, strict=True)),
        columns=render_columns(renderer, document, loss, answers, branch_ids),
    )


def _without_media(mark: str, *unread: str) -> str:
    """Reason why a document with a placeholder and nothing to show is rejected."""
    found = f"the text has {mark}, and the row shows no image or video"
    columns = f"; columns that nothing reads: {', '.join(unread)}" if unread else ""
    return f"{found}{columns}; give the medium in a column that the form reads, or write the text without {mark}"


def write_marks(renderer: Renderer, document: Document, placements: Sequence[Placement], stream: TokenStream) -> int:
    """Writes a text, interleaved parts or turns between the tokenizer's own marks.

    Returns:
        Tokens of the prefix that annotations share.

    Raises:
        DocumentError: ``bad_row``: only a chat template could write it.
    """
    _refuse_what_needs_a_template(renderer, document)
    tokenizer, waiting = renderer.tokenizer, iter(placements)

    def parts(given: Sequence[Part], loss: float) -> None:
        for part in given:
            if isinstance(part, Medium):
                stream.placement(next(waiting))
            else:
                stream.text(part, loss=loss)

    def turns(messages: Sequence[Message]) -> None:
        chat = tokenizer.chat
        assert chat is not None, "refused before"
        for message in messages:
            stream.tokens_of(chat.before[message.role], loss=0.0)
            parts(message.parts, message.loss)
            stream.tokens_of(chat.end[message.role], loss=message.loss)
            stream.tokens_of(chat.after[message.role], loss=0.0)

    prefix = renderer.family.prefix
    stream.tokens_of([tokenizer.token_id(prefix)] if prefix else tokenizer.bos, loss=0.0)
    if document.text is not None:
        stream.text(document.text, loss=1.0)
        stream.tokens_of([tokenizer.entry.eos_id], loss=1.0)
    parts(document.prompt, 0.0)
    if document.interleaved is not None:
        parts(document.interleaved, 1.0)
        stream.tokens_of([tokenizer.entry.eos_id], loss=1.0)
    parts(document.shared, 0.0)
    n_shared = stream.length if document.annotated else 0
    for number, branch in enumerate(document.branches, start=1):
        stream.branch = number if document.annotated else 0
        turns(branch)
    return n_shared


def _refuse_what_needs_a_template(renderer: Renderer, document: Document) -> None:
    """The forms written here have no tools and no other roles: nothing of a row may be left out in silence."""
    if document.branches and renderer.tokenizer.chat is None:
        raise DocumentError(
            "bad_row",
            f"the tokenizer has no chat template and no tokens of a chat form that is known; {TEMPLATE_REMEDY}",
        )
    if document.media() and not renderer.is_generic:
        raise DocumentError("bad_row", f"the model folder has no chat template that shows media; {TEMPLATE_REMEDY}")
    for name in ("tools", "documents", "template_kwargs"):
        if getattr(document, name) is not None:
            raise DocumentError("bad_row", f"{name} cannot be written without a chat template; {TEMPLATE_REMEDY}")
    for branch, messages in enumerate(document.branches):
        for number, message in enumerate(messages):
            where = f"annotations[{branch}][{number}]" if document.annotated else f"messages[{number}]"
            if message.role in ("developer", "tool") or message.fields:
                name = message.fields[0][0] if message.fields else f"role {message.role}"
                raise DocumentError(
                    "bad_row", f"{where}.{name} cannot be written without a chat template; {TEMPLATE_REMEDY}"
                )


def render_plain(renderer: Renderer, text: str) -> RenderedDocument:
    """``BOS text EOS``, with loss on the text and its end.

    Arrays that are alike in all such documents are parts of shared ones, which cannot be written into.

    Raises:
        DocumentError: ``too_long``, or ``empty`` where the tokenizer leaves nothing that carries loss.
    """
    tokenizer, family = renderer.tokenizer, renderer.family
    begin = [tokenizer.token_id(family.prefix)] if family.prefix else tokenizer.bos
    tokens = _plain_tokens(renderer, text, begin)
    if len(tokens) < 2:
        raise DocumentError("empty", "no token carries loss")
    labels = np.empty_like(tokens)
    labels[:-1] = tokens[1:]  # at most one token stands before the text, so every label carries loss
    labels[-1] = IGNORE_INDEX
    n = len(tokens)
    zeros, weights, positions, nowhere = _shared() if n <= SHARED_TOKENS else _constant(n)
    return RenderedDocument(
        tokens=tokens,
        labels=labels,
        loss_weights=weights[-n:],
        position_ids=positions[: family.axes, :n],
        branch_ids=zeros[:n],
        group_ids=_groups(renderer, tokens, nowhere[:n]),
        unit_ids=nowhere[:n],
        units=NO_UNITS,
        n_shared=0,
        n_branches=0,
        merge=family.merge,
        columns={column.name: column.zeros(n) for column in renderer.config.columns_of_tokens},
    )


def _plain_tokens(renderer: Renderer, text: str, begin: Sequence[int]) -> Int32[np.ndarray, "doc"]:
    parts = list(encoded_parts(renderer.tokenizer, text, len(begin)))
    tokens = np.empty(len(begin) + sum(map(len, parts)) + 1, np.int32)
    tokens[: len(begin)] = begin
    np.concatenate(parts, out=tokens[len(begin) : -1])
    tokens[-1] = renderer.tokenizer.entry.eos_id
    return tokens


def _groups(
    renderer: Renderer, tokens: Int32[np.ndarray, "doc"], others: Int32[np.ndarray, "doc"]
) -> Int32[np.ndarray, "doc"]:
    """A model may have tokens that see each other in both directions wherever they stand; without such, ``others``."""
    together = [] if renderer.is_generic else list(map(renderer.tokenizer.token_id, renderer.family.group_tokens))
    return np.where(np.isin(tokens, together), 0, CAUSAL_ONLY).astype(np.int32) if together else others


Constant = tuple[
    Int32[np.ndarray, "length"],
    Float32[np.ndarray, "length"],
    Int32[np.ndarray, "3 length"],
    Int32[np.ndarray, "length"],
]


def _constant(length: int) -> Constant:
    """Branches, loss weights (of which the last is that of a token without label), positions, and no group or unit."""
    weights = np.ones(length, np.float32)
    weights[-1] = 0
    positions = np.broadcast_to(np.arange(length, dtype=np.int32), (3, length))
    arrays = np.zeros(length, np.int32), weights, positions, np.full(length, NOT_POOLED, np.int32)
    for array in arrays:
        array.flags.writeable = False
    return arrays


@cache
def _shared() -> Constant:
    return _constant(SHARED_TOKENS)


assert NOT_POOLED == CAUSAL_ONLY, "documents without units have one array for both"
