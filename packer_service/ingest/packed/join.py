"""The pieces of a document that was split, joined to what it was before: the reverse of ``ingest.oversize``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from jaxtyping import Float32, Int32

from preshard.packer_service.packs.rendered import RenderedDocument, cut, document_positions, groups_of_units
from preshard.packer_service.packs.units import Units
from preshard.schemas.sequence import IGNORE_INDEX, NOT_POOLED


def joined(pieces: Sequence[RenderedDocument], *, bidirectional: str | None) -> RenderedDocument:
    """A document from all of its pieces, in order, byte for byte as it was rendered.

    Positions and groups follow from the whole; the labels that cuts took are the tokens behind the cuts. Annotations
    follow the shared prefix, which every piece repeats.

    Args:
        pieces: at least one.
        bidirectional: as in the configuration of the generic way; None where a model's tokens make the groups.
    """
    if len(pieces) == 1:
        return pieces[0]
    first = pieces[0]
    parts = [first, *(_behind_prefix(piece) for piece in pieces[1:])] if first.n_branches else list(pieces)
    unit_ids, units = _units(parts)
    branches = [0, *accumulate(piece.n_branches for piece in pieces)]
    branch_ids = np.concatenate(
        [
            np.where(part.branch_ids > 0, part.branch_ids + before, 0)
            for part, before in zip(parts, branches, strict=False)
        ]
    ).astype(np.int32)
    tokens = np.concatenate([part.tokens for part in parts])
    labels, weights = _labels(parts, tokens)
    groups = np.concatenate([part.group_ids for part in parts])
    return replace(
        first,
        tokens=tokens,
        labels=labels,
        loss_weights=weights,
        position_ids=document_positions(branch_ids, unit_ids, units, axes=len(first.position_ids), merge=first.merge),
        branch_ids=branch_ids,
        group_ids=groups if bidirectional is None else groups_of_units(unit_ids, bidirectional),
        unit_ids=unit_ids,
        units=units,
        n_branches=branches[-1],
        media=tuple(crops for part in parts for crops in _media_of(part)),
        label_cut=pieces[-1].label_cut,
        medium_cut=pieces[-1].medium_cut,
    )


def _behind_prefix(piece: RenderedDocument) -> RenderedDocument:
    """The annotations of a piece, without the shared prefix; the cut gives them positions of their own, which the whole
    replaces. ``media`` and ``numbers`` still count from the piece's first unit.
    """
    rest = cut(piece, piece.n_shared, len(piece))
    return replace(rest, n_branches=piece.n_branches)


def _media_of(part: RenderedDocument) -> list[object]:
    return [part.media[number] for number in part.units.numbers.tolist()]


def _media_before(parts: Sequence[RenderedDocument]) -> list[int]:
    """What each part adds to its numbers of images and videos: a video that a cut went through keeps its number."""
    following, before = 0, []
    for number, part in enumerate(parts):
        before.append(following - (number > 0 and parts[number - 1].medium_cut))
        following = before[-1] + int(part.units.media.max(initial=-1)) + 1 if len(part.units) else following
    return before


def _units(parts: Sequence[RenderedDocument]) -> tuple[Int32[np.ndarray, "doc"], Units]:
    """Which unit each row belongs to, and all units, counted through the whole document."""
    media, tokens = _media_before(parts), [0, *accumulate(map(len, parts))]
    counts = [0, *accumulate(len(part.units) for part in parts)]
    unit_ids = np.concatenate(
        [
            np.where(part.unit_ids >= 0, part.unit_ids + before, NOT_POOLED)
            for part, before in zip(parts, counts, strict=False)
        ]
    ).astype(np.int32)
    moved = [part.units.moved(at, by) for part, at, by in zip(parts, tokens, media, strict=False)]
    return unit_ids, replace(Units.joined(moved), numbers=np.arange(counts[-1]))


def _labels(
    parts: Sequence[RenderedDocument], tokens: Int32[np.ndarray, "doc"]
) -> tuple[Int32[np.ndarray, "doc"], Float32[np.ndarray, "doc"]]:
    """Labels and weights, with those that the cuts between the parts took: the weight of the token beside it."""
    labels = np.concatenate([part.labels for part in parts])
    weights = np.concatenate([part.loss_weights for part in parts])
    for part, end in zip(parts[:-1], accumulate(map(len, parts[:-1])), strict=True):
        if part.label_cut:
            assert labels[end - 1] == IGNORE_INDEX, "a cut takes the last label"
            labels[end - 1] = tokens[end]
            weights[end - 1] = next((w for w in weights[[end, end - 2]] if w), weights.max())
    return labels, weights
