"""Rows of tokens as documents, and the columns of tokens of any document."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from jaxtyping import Bool, Float32, Int32, Int64

from preshard.packer_service.ingest.document import Document, Message
from preshard.packer_service.ingest.model import Renderer
from preshard.packer_service.ingest.stream import MAX_TOKENS, too_long
from preshard.packer_service.packs.rendered import RenderedDocument, document_positions, shifted_labels
from preshard.packer_service.packs.units import Units
from preshard.schemas.errors import DocumentError
from preshard.schemas.sequence import CAUSAL_ONLY, IGNORE_INDEX, NOT_POOLED

FIRST_ANSWER = 2
"""Number of the first turn of an assistant: chat templates call 1 what they mark for no turn in particular."""


def render_tokens(renderer: Renderer, document: Document) -> RenderedDocument:
    """A row of tokens as it is, nothing added. Several documents in it are branches without a shared prefix: none sees
    another, and positions begin at 0 in each.

    Raises:
        DocumentError: ``bad_row``: an id that the vocabulary lacks, or that only an image fills; ``too_long``;
            ``empty``: no token has a label.
    """
    given = document.tokens
    assert given is not None, "asked before"
    if len(given.ids) > MAX_TOKENS:
        raise too_long(len(given.ids))
    _check_ids(renderer, given.ids)
    tokens, lengths = given.ids.astype(np.int32), given.lengths
    several = len(lengths) > 1
    branch_ids = np.repeat(np.arange(1, len(lengths) + 1) if several else [0], lengths).astype(np.int32)
    labels, nowhere = shifted_labels(tokens, given.loss > 0, branch_ids), np.full(len(tokens), NOT_POOLED, np.int32)
    if (labels == IGNORE_INDEX).all():
        raise DocumentError("empty", "no token after the first of a document carries loss")
    units, family, weight = Units.none(), renderer.family, np.float32(document.weight)
    return RenderedDocument(
        tokens=tokens,
        labels=labels,
        loss_weights=np.where(labels == IGNORE_INDEX, np.float32(0), np.roll(given.loss, -1) * weight),
        position_ids=document_positions(branch_ids, nowhere, units, axes=family.axes, merge=family.merge),
        branch_ids=branch_ids,
        group_ids=np.full(len(tokens), CAUSAL_ONLY, np.int32),
        unit_ids=nowhere,
        units=units,
        n_shared=0,
        n_branches=len(lengths) if several else 0,
        merge=family.merge,
        columns=render_columns(renderer, document, given.loss, None, branch_ids),
    )


def _check_ids(renderer: Renderer, ids: Int64[np.ndarray, "tokens"]) -> None:
    tokenizer, family = renderer.tokenizer, renderer.family
    outside = (ids < 0) | (ids >= tokenizer.entry.vocab_size)
    if outside.any():
        at = int(outside.argmax())
        last = tokenizer.entry.vocab_size - 1
        raise DocumentError(
            "bad_row",
            f"input_ids[{at}] is {ids[at]}; the tokenizer has the ids 0 to {last}; name the tokenizer that made them",
        )
    own = [] if renderer.is_generic else (*family.row_tokens, *family.group_tokens, *family.media_tokens)
    named = [tokenizer.token_ids[token] for token in own if token in tokenizer.token_ids]
    filled = np.isin(ids, [tokenizer.entry.image_id, *named])
    if filled.any():
        at = int(filled.argmax())
        raise DocumentError(
            "bad_row",
            f"input_ids[{at}] is {ids[at]}, a token reserved for images, videos or audio; write rows with images and "
            "videos as messages",
        )


def number_answers(document: Document) -> tuple[Document, Float32[np.ndarray, "answers"]]:
    """The document with the number of each turn of an assistant in place of its weight, and the weights by number.

    What is written weighs every token under loss, so that this number says which turn it is of.
    """
    weights = {1: np.nan}

    def numbered(turn: Message) -> Message:
        if not turn.loss:
            return turn
        number = FIRST_ANSWER + turn.answer
        weights[number] = turn.weight
        return replace(turn, weight=float(number))

    branches = tuple(tuple(map(numbered, branch)) for branch in document.branches)
    table = np.zeros(max(weights) + 1, np.float32)
    table[list(weights)] = list(weights.values())
    return replace(document, branches=branches), table


def render_columns(
    renderer: Renderer,
    document: Document,
    loss: Float32[np.ndarray, "doc"],
    answers: Int64[np.ndarray, "doc"] | None,
    branch_ids: Int32[np.ndarray, "doc"],
) -> dict[str, np.ndarray]:
    """The columns of tokens, each value at the place where its token is predicted.

    Args:
        renderer: has the columns.
        document: has their values, for each token, for each turn of an assistant, or one for all of the loss.
        loss: what the loss of each token counts.
        answers: for values of turns, the turn that each token under loss is of, as numbers of ``number_answers``.
        branch_ids: of the tokens.

    Raises:
        DocumentError: ``bad_row``: a token under loss has no value.
    """
    values, found = dict(document.values), {}
    learnt, follows = loss > 0, branch_ids[1:] == branch_ids[:-1]
    predicted = np.append(False, learnt[1:] & follows)
    for column in renderer.config.columns_of_tokens:
        out = found[column.name] = column.zeros(len(loss))
        if column.name in values:
            own = _of_tokens(document, values[column.name], learnt, answers)
            missing = np.isnan(own).reshape(len(loss), -1).any(axis=1)
            if (missing & predicted).any():
                raise DocumentError("bad_row", f"{column.name} is null or missing where a token carries loss")
            own[missing] = 0
            out[:-1][follows] = own[1:][follows].astype(column.dtype)
    return found


def _of_tokens(
    document: Document, given: np.ndarray, learnt: Bool[np.ndarray, "doc"], answers: Int64[np.ndarray, "doc"] | None
) -> np.ndarray:
    """A value for each token, NaN where there is none."""
    if document.tokens is not None and len(given) == len(document.tokens.kept):
        return given[document.tokens.kept]
    own = np.zeros((len(learnt), *given.shape[1:]))
    if answers is None:
        own[learnt] = given[0]
        return own
    if (answers[learnt] < FIRST_ANSWER).any():
        raise DocumentError(
            "bad_row", "the chat template puts loss on text outside of all turns; give one value for the row"
        )
    own[learnt] = given[answers[learnt] - FIRST_ANSWER]
    return own
