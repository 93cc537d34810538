"""A document of a packed dataset to the pieces that are packed anew: nothing is tokenised, probed or decoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
from jaxtyping import Float32, Int32

from preshard.packer_service.ingest.oversize import fit_pack
from preshard.packer_service.ingest.packed.dataset import PackedDatasetSource, open_dataset
from preshard.packer_service.ingest.packed.pack import weigh
from preshard.packer_service.ingest.source.file import SourceRow
from preshard.packer_service.packs.rendered import (
    RenderedDocument,
    cut,
    document_positions,
    groups_of_units,
    joined_columns,
)
from preshard.packer_service.packs.units import Units
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError
from preshard.schemas.sequence import IGNORE_INDEX, NOT_POOLED

LIMITS = ("seq_len", "max_images", "max_patches", "oversize")
"""Keys that decide how a document is split."""


def stored_pieces(row: SourceRow, config: PackConfig) -> list[RenderedDocument]:
    """The pieces of a stored document, as :func:`~preshard.packer_service.ingest.render.render_pieces` gives a row's.

    A document that was split is joined first.

    Args:
        row: where the document lies, or its first piece.
        config: of the new dataset.

    Raises:
        DocumentError: its pack is damaged, not all of its pieces are there, or it does not fit.
        OSError: the file system failed; no document is at fault.
    """
    source = open_dataset(row.file)
    several = source.repeated.get(row.doc_id or "")
    if several is None:
        return fit_pack(_taken(source, row, config), config)
    _require_whole(source, several, config)
    parts = [_taken(source, piece, config) for piece in several]
    if _same_limits(source.config, config):
        return parts
    return fit_pack(join_pieces(parts, bidirectional=_bidirectional(source)), config)


def _require_whole(source: PackedDatasetSource, pieces: Sequence[SourceRow], now: PackConfig) -> None:
    """
    Raises:
        DocumentError: the document was split, and its pieces do not make the whole.
    """
    lost, before = sum(piece.truncated for piece in pieces), source.config
    if pieces[0].doc_id in source.incomplete:
        raise DocumentError("bad_row", "it was split, and not all of its pieces were written; pack its source")
    if lost and before.oversize == "split" and not _same_limits(before, now):
        what = f"{lost} of its tokens are in no piece"
        raise DocumentError("bad_row", f"it was split, and {what}, so it cannot be joined; pack its source")


def _bidirectional(source: PackedDatasetSource) -> str | None:
    model = source.manifest.model
    return source.config.bidirectional if model is None else model.bidirectional


def _same_limits(before: PackConfig, now: PackConfig) -> bool:
    return all(getattr(before, name) == getattr(now, name) for name in LIMITS)


def _taken(source: PackedDatasetSource, row: SourceRow, config: PackConfig) -> RenderedDocument:
    place = row.reference
    pack = source.pack(place.offset)
    if place.size >= len(pack.head.documents) or pack.head.documents[place.size].doc_id != row.doc_id:
        raise DocumentError("bad_row", f"pack {place.offset} does not hold it where documents.parquet says")
    taken = pack.document(place.size)
    wanted, has = [name for name, _ in config.keep_columns], dict(source.config.keep_columns)
    joined = [name for name in wanted if name not in has]
    values = {**taken.kept, **(source.joined_values(row, joined) if joined else {})}
    kept = {name: values.get(name) for name in wanted}
    return weigh(replace(taken, truncated=row.truncated, kept=kept), config)


def join_pieces(pieces: Sequence[RenderedDocument], *, bidirectional: str | None) -> RenderedDocument:
    """A document from all of its pieces, in order, byte for byte as it was rendered.

    Positions and groups follow from the whole; the labels that cuts took are the tokens behind the cuts. Annotations
    follow the shared prefix, which every piece repeats.

    Args:
        pieces: at least one.
        bidirectional: as in the configuration of the generic way, or in the manifest's model; None where a model's
            tokens make the groups, if any.
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
        truncated=sum(piece.truncated for piece in pieces),
        label_cut=pieces[-1].label_cut,
        medium_cut=pieces[-1].medium_cut,
        columns=joined_columns(parts),
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
    """Offset of each part's numbers of images and videos: a video that a cut went through keeps its number."""
    following, before = 0, []
    for number, part in enumerate(parts):
        before.append(following - (number > 0 and parts[number - 1].medium_cut))
        following = before[-1] + int(part.units.media.max(initial=-1)) + 1 if len(part.units) else following
    return before


def _units(parts: Sequence[RenderedDocument]) -> tuple[Int32[np.ndarray, "doc"], Units]:
    """The unit of each row, and all units, counted through the whole document."""
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
