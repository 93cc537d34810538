"""The rules of a sample's token arrays: each is derived again from the spans, the units and the other arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64

from preshard.packer_service.verify.independent.formulas import derive_positions
from preshard.packer_service.verify.sample.units import rows_in_tokens, unit_of_row
from preshard.packer_service.verify.verdict import Finding
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import (
    BranchesInvalid,
    ColumnsInvalid,
    FormatError,
    GroupsInvalid,
    LabelsInvalid,
    PaddingInvalid,
    PoolingInvalid,
    PositionsInvalid,
    PreferencesInvalid,
    SequenceInvalid,
    SpansInvalid,
    WeightsInvalid,
)
from preshard.schemas.header import DocumentSpan, SampleHead
from preshard.schemas.manifest import ModelEntry, TokenizerEntry
from preshard.schemas.sequence import CAUSAL_ONLY, IGNORE_INDEX, NOT_POOLED, PADDING_DOC, PackedSequence


def _where(error: type[FormatError], name: str, found: np.ndarray, wrong: np.ndarray, legal: Any) -> Iterator[Finding]:
    """A finding for the first of the wrong entries of an array, if there is one.

    ``legal`` is what the rule asks for: an array of the same length, or words for all entries.
    """
    at = np.flatnonzero(wrong)
    if len(at):
        first = int(at[0])
        asked = legal[first] if isinstance(legal, np.ndarray) else legal
        others = f", and {len(at) - 1} more" if len(at) > 1 else ""
        yield error, f"{name}[{first}] is {found[first]}, not {asked}{others}"


def _differs(error: type[FormatError], name: str, found: np.ndarray, expected: np.ndarray) -> Iterator[Finding]:
    yield from _where(error, name, found, found != expected, expected)


def check_tokens(sequence: PackedSequence, tokenizer: TokenizerEntry) -> Iterator[Finding]:
    """Every token is an id of the tokenizer."""
    tokens = sequence.tokens
    outside = (tokens < 0) | (tokens >= tokenizer.vocab_size)
    yield from _where(SequenceInvalid, "tokens", tokens, outside, f"an id below vocab_size {tokenizer.vocab_size}")


def check_spans(spans: list[DocumentSpan], config: PackConfig) -> Iterator[Finding]:
    """Spans lie in order, aligned, without overlap, inside the pack, and show no more than it may."""
    for name, most in (("n_images", config.max_images), ("n_patches", config.max_patches)):
        if most is not None and (shown := sum(getattr(span, name) for span in spans)) > most:
            yield SpansInvalid, f"{name} of all documents are {shown}, more than max_{name.removeprefix('n_')} {most}"
    free_from, step = 0, config.alignment
    for number, span in enumerate(spans):
        name = f"documents[{number}]"
        if span.length < 1:
            yield SpansInvalid, f"{name}.length is {span.length}, not at least 1"
        if span.start % step:
            yield SpansInvalid, f"{name}.start is {span.start}, not a multiple of the alignment {step}"
        if span.aligned_length != -(-span.length // step) * step:
            rounded = -(-span.length // step) * step
            yield SpansInvalid, f"{name}.aligned_length is {span.aligned_length}, not {rounded} ({span.length} aligned)"
        if span.start < free_from:
            yield (
                SpansInvalid,
                f"{name}.start is {span.start}, inside the document before it, which ends at {free_from}",
            )
        free_from = span.start + span.aligned_length
    if free_from > config.seq_len:
        yield SpansInvalid, f"the last document ends at {free_from}, after seq_len {config.seq_len}"


def check_doc_ids(sequence: PackedSequence, spans: list[DocumentSpan]) -> Iterator[Finding]:
    """``doc_ids`` number the spans, and are -1 elsewhere."""
    expected = np.full(sequence.seq_len, PADDING_DOC, np.int32)
    for number, span in enumerate(spans):
        expected[span.start : span.start + span.length] = number
    yield from _differs(SpansInvalid, "doc_ids", sequence.doc_ids, expected)


def check_padding(sequence: PackedSequence, tokenizer: TokenizerEntry) -> Iterator[Finding]:
    """A token outside of every document does nothing in any array."""
    inert = {
        "tokens": tokenizer.pad_id,
        "labels": IGNORE_INDEX,
        "loss_weights": 0,
        "branch_ids": 0,
        "group_ids": CAUSAL_ONLY,
        "pool_ids": NOT_POOLED,
    }
    padding = sequence.doc_ids == PADDING_DOC
    for name, value in inert.items():
        array = getattr(sequence, name)
        yield from _where(PaddingInvalid, name, array, padding & (array != value), f"{value} (padding)")
    for axis, positions in enumerate(sequence.position_ids):
        wrong = padding & (positions != 0)
        yield from _where(PaddingInvalid, f"position_ids[{axis}]", positions, wrong, "0 (padding)")


def check_branches(sequence: PackedSequence) -> Iterator[Finding]:
    """Branches count up by one inside a document, from the shared prefix (0), or from 1 where the prefix is empty."""
    branch, doc = sequence.branch_ids.astype(np.int64), sequence.doc_ids
    before = np.concatenate([[0], np.where(doc[1:] == doc[:-1], branch[:-1], 0)])
    wrong = (doc >= 0) & (branch != before) & (branch - before != 1)
    yield from _where(BranchesInvalid, "branch_ids", branch, wrong, "the branch before it, or the next")


def check_preferences(sequence: PackedSequence, spans: list[DocumentSpan]) -> Iterator[Finding]:
    """A preference has two branches, each with labels, and a prefix without; all pooled rows are in the prefix."""
    for number, span in enumerate(spans):
        if not span.preference:
            continue
        own = slice(span.start, span.start + span.length)
        branch, labelled = sequence.branch_ids[own], sequence.labels[own] != IGNORE_INDEX
        found = [int(labelled[branch == each].sum()) for each in range(int(branch.max(initial=0)) + 1)]
        name = f"documents[{number}], a preference,"
        if len(found) != 3 or found[0] or not all(found[1:]):
            yield (
                PreferencesInvalid,
                f"{name} has {found} labels by branch; branch 0 must have none, branches 1 and 2 at least one each",
            )
        if (sequence.pool_ids[own][branch > 0] != NOT_POOLED).any():
            yield PreferencesInvalid, f"{name} has pooled rows in a branch"


def check_positions(sequence: PackedSequence, head: SampleHead, model: ModelEntry | None) -> Iterator[Finding]:
    """Positions are those of each document alone; each annotation continues from the end of the shared prefix."""
    merge = 1 if model is None else model.merge
    expected = derive_positions(sequence, head.units, len(head.documents), axes=sequence.axes, merge=merge)
    real, found = sequence.doc_ids >= 0, sequence.position_ids
    for axis in range(sequence.axes):
        wrong = real & (found[axis] != expected[axis])
        yield from _where(PositionsInvalid, f"position_ids[{axis}]", found[axis], wrong, expected[axis])


def check_labels(sequence: PackedSequence) -> Iterator[Finding]:
    """A label is the next token, of the same document and branch, and not the place of a vision feature."""
    doc, branch, labels = sequence.doc_ids, sequence.branch_ids, sequence.labels
    follows = np.zeros(sequence.seq_len, np.bool_)
    follows[:-1] = (doc[1:] == doc[:-1]) & (branch[1:] == branch[:-1]) & (sequence.pool_ids[1:] == NOT_POOLED)
    following = np.where(follows, np.roll(sequence.tokens, -1), IGNORE_INDEX)
    wrong = (doc >= 0) & (labels != IGNORE_INDEX) & (~follows | (labels != following))
    yield from _where(LabelsInvalid, "labels", labels, wrong, following)


def check_weights(sequence: PackedSequence) -> Iterator[Finding]:
    """Weights are positive exactly where there is a label."""
    weights, labels = sequence.loss_weights, sequence.labels
    positive = np.isfinite(weights) & (weights > 0)
    legal = np.where(labels == IGNORE_INDEX, "0 (there is no label)", "positive and finite (there is a label)")
    wrong = (sequence.doc_ids >= 0) & np.where(labels == IGNORE_INDEX, weights != 0, ~positive)
    yield from _where(WeightsInvalid, "loss_weights", weights, wrong, legal)


def check_columns(
    sequence: PackedSequence, spans: Sequence[DocumentSpan], may_be_cut: Sequence[bool] | None
) -> Iterator[Finding]:
    """Values of columns are finite, and 0 in padding, where a branch ends inside its document, and at the end of a
    document of which nothing lies behind (``may_be_cut``: of each span; None where that is not known).
    """
    doc, branch = sequence.doc_ids, sequence.branch_ids
    ends = np.zeros(sequence.seq_len, np.bool_)
    ends[:-1] = (doc[1:] == doc[:-1]) & (branch[1:] != branch[:-1])
    whole = zip(spans, may_be_cut or [True] * len(spans), strict=False)
    ends[[span.start + span.length - 1 for span, has_more in whole if not has_more]] = True
    for name, values in sequence.columns.items():
        of_token = values.reshape(sequence.seq_len, -1)
        where = f"columns.{name}"
        yield from _where(ColumnsInvalid, where, values, ~np.isfinite(of_token).all(axis=1), "finite")
        wrong = ((doc == PADDING_DOC) | ends) & (of_token != 0).any(axis=1)
        yield from _where(ColumnsInvalid, where, values, wrong, "0 (no token follows it)")


def check_pooling(sequence: PackedSequence, head: SampleHead, row_ids: Sequence[int]) -> Iterator[Finding]:
    """``pool_ids`` name every pooled row once, unit by unit in the order of their tokens, on row tokens of the unit's
    own document and one branch.
    """
    at = np.flatnonzero(sequence.pool_ids != NOT_POOLED)
    rows, n_rows = sequence.pool_ids[at], head.cum_token_pooling_bounds[-1] if head.cum_token_pooling_bounds else 0
    if len(at) != n_rows:
        yield PoolingInvalid, f"pool_ids name {len(at)} rows, cum_token_pooling_bounds {n_rows}"
        return
    asked = rows_in_tokens(head)
    wrong = np.flatnonzero(rows != asked)
    if len(wrong):
        first = wrong[0]
        yield PoolingInvalid, f"pool_ids[{at[first]}] is {rows[first]}, not {asked[first]}, the next row of its unit"
        return
    pooled, tokens = sequence.pool_ids != NOT_POOLED, sequence.tokens
    legal = f"the image token {' or '.join(map(str, row_ids))} (a vision feature fills it)"
    is_row = np.isin(tokens, row_ids)
    yield from _where(PoolingInvalid, "tokens", tokens, pooled & ~is_row, legal)
    without = is_row & ~pooled & (sequence.doc_ids != PADDING_DOC)
    yield from _where(PoolingInvalid, "tokens", tokens, without, "another token (no row fills it)")
    unit = unit_of_row(head)[rows]
    yield from _check_kinds(sequence, head, row_ids, at, unit)
    owner = np.full(sequence.seq_len, PADDING_DOC, np.int64)
    owner[at] = np.array([each.document for each in head.units], np.int64)[unit]
    wrong_doc = pooled & (sequence.doc_ids != owner)
    yield from _where(PoolingInvalid, "doc_ids", sequence.doc_ids, wrong_doc, owner)
    apart = (np.diff(unit) == 0) & (np.diff(sequence.branch_ids[at]) != 0)
    if apart.any():
        yield PoolingInvalid, f"unit {unit[:-1][apart][0]} lies in two branches, at token {at[1:][apart][0]}"


def _check_kinds(
    sequence: PackedSequence,
    head: SampleHead,
    row_ids: Sequence[int],
    at: Int64[np.ndarray, "rows"],
    unit: Int64[np.ndarray, "rows"],
) -> Iterator[Finding]:
    """Checks, where a model has one token for rows of stills and another for those of frames, that rows are on theirs.

    Args:
        sequence, head: of the sample.
        row_ids: of stills, then of frames where these have their own.
        at: the tokens that rows fill.
        unit: the unit of each.
    """
    if len(row_ids) == 2:
        asked = np.full(sequence.seq_len, row_ids[1], np.int64)
        is_still = np.array([each.kind == "image" for each in head.units], bool)
        asked[at[is_still[unit]]] = row_ids[0]
        found = np.isin(sequence.tokens, row_ids) & (sequence.pool_ids != NOT_POOLED)
        yield from _where(PoolingInvalid, "tokens", sequence.tokens, found & (sequence.tokens != asked), asked)


def check_groups(
    sequence: PackedSequence, head: SampleHead, bidirectional: str, model: ModelEntry | None
) -> Iterator[Finding]:
    """Groups follow the model's rule, or ``bidirectional``, numbered from 0 in the order of their first tokens."""
    expected = np.full(sequence.seq_len, CAUSAL_ONLY, np.int64)
    pooled = sequence.pool_ids != NOT_POOLED
    bidirectional = bidirectional if model is None else model.bidirectional or ""
    inside = pooled if model is None else (sequence.doc_ids >= 0) & np.isin(sequence.tokens, model.group_ids)
    if bidirectional == "within_image":
        numbers = np.empty(len(head.units), np.int64)
        numbers[head.token_order] = np.arange(len(head.units))
        expected[pooled] = numbers[unit_of_row(head)[sequence.pool_ids[pooled]]]
    elif model is not None or bidirectional == "image_tokens":
        expected[inside] = np.unique(sequence.doc_ids[inside], return_inverse=True)[1]
    wrong = (sequence.doc_ids >= 0) & (sequence.group_ids != expected)
    yield from _where(GroupsInvalid, "group_ids", sequence.group_ids, wrong, expected)
