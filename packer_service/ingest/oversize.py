"""Treatment of a document above a budget: it is rejected, cut short, or split into pieces."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from preshard.packer_service.packs.rendered import RenderedDocument, cut, joined_columns, renumbered
from preshard.packer_service.packs.units import Units
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError
from preshard.schemas.sequence import IGNORE_INDEX

UNLIMITED = 2**63 - 1


def fit(
    rendered: RenderedDocument,
    *,
    seq_len: int,
    max_images: int | None,
    oversize: str,
    max_patches: int | None = None,
    step: Callable[[], int] = lambda: 1,
) -> list[RenderedDocument]:
    """The pieces of a document that fit a pack, the last with the number of tokens lost (``truncated``).

    ``truncate`` keeps what fits from the start. ``split`` cuts a text or conversation into consecutive pieces, and a
    document of annotations between annotations, with the shared prefix in front of each piece. No cut goes through a
    unit. A piece without loss is dropped, and its tokens count as lost. The answers of a preference are never cut or
    parted.

    Args:
        rendered: the whole document.
        seq_len: most tokens of a piece.
        max_images: most crops of a piece, None for no limit.
        oversize: ``reject``, ``truncate`` or ``split``.
        max_patches: most patches that the vision encoder sees of a piece, None for no limit.
        step: what ``seq_len`` is a multiple of, for messages.

    Raises:
        DocumentError: ``too_long``, ``too_many_images`` or ``too_many_patches``, when it does not fit and may not be
            cut, or when the parts that fit carry no loss.
    """
    limit = _Limit(seq_len, max_images, max_patches)
    if limit.fits(rendered, 0, len(rendered)):
        return [rendered]
    code, message = limit.complaint(rendered)
    if rendered.preference:
        raise DocumentError(
            code, f"{message}, with both answers, which are never cut: raise the limit, or shorten them"
        )
    if oversize == "reject":
        holds = {"too_long": ("seq_len", len(rendered)), "too_many_images": ("max_images", rendered.n_images)}
        name, least = holds.get(code, ("max_patches", int(rendered.units.patches.sum())))
        least = -(-least // step()) * step() if name == "seq_len" else least
        raise DocumentError(code, f"{message}; {name}={least} holds it, oversize=truncate or oversize=split a part")
    pieces = _split(rendered, limit) if oversize == "split" else [cut(rendered, 0, limit.end(rendered, 0))]
    kept = [piece for piece in pieces if len(piece) and (piece.labels != IGNORE_INDEX).any()]
    if not kept:
        raise DocumentError(code, f"{message}, and no part that fits carries any loss")
    repeated = rendered.n_shared * (len(kept) - 1)
    lost = len(rendered) + repeated - sum(map(len, kept))
    *others, last = (replace(piece, truncated=0) for piece in kept)
    return [*others, replace(last, truncated=rendered.truncated + lost)]


def fit_pack(rendered: RenderedDocument, config: PackConfig) -> list[RenderedDocument]:
    """The pieces of a document that fit a pack of this configuration (see :func:`fit`)."""
    return fit(
        rendered,
        seq_len=config.seq_len,
        max_images=config.max_images,
        max_patches=config.max_patches,
        oversize=config.oversize,
        step=lambda: config.seq_len_step[0],
    )


class _Limit:
    """The budgets of a pack."""

    def __init__(self, seq_len: int, max_images: int | None, max_patches: int | None) -> None:
        self.seq_len = seq_len
        self.max_images = UNLIMITED if max_images is None else max_images
        self.max_patches = UNLIMITED if max_patches is None else max_patches

    def fits(self, rendered: RenderedDocument, start: int, end: int) -> bool:
        units = rendered.units
        if not len(units):  # most documents of a text corpus
            return end - start <= self.seq_len
        inside = (units.edges[:, 0] >= start) & (units.edges[:, 0] < end)
        return (
            end - start <= self.seq_len
            and int(units.crops[inside].sum()) <= self.max_images
            and int(units.patches[inside].sum()) <= self.max_patches
        )

    def complaint(self, rendered: RenderedDocument) -> tuple[str, str]:
        if len(rendered) > self.seq_len:
            return "too_long", f"has {len(rendered)} tokens, more than seq_len {self.seq_len}"
        if rendered.n_images > self.max_images:
            return "too_many_images", f"has {rendered.n_images} images, more than max_images {self.max_images}"
        patches = int(rendered.units.patches.sum())
        return "too_many_patches", f"has {patches} patches, more than max_patches {self.max_patches}"

    def end(self, rendered: RenderedDocument, start: int) -> int:
        """The furthest position for which ``[start, position)`` fits and that no unit lies across."""
        end = min(start + self.seq_len, len(rendered))
        later = np.flatnonzero(rendered.units.edges[:, 0] >= start)
        crops, patches = (np.cumsum(sizes[later]) for sizes in (rendered.units.crops, rendered.units.patches))
        over = (crops > self.max_images) | (patches > self.max_patches) | (rendered.units.edges[later, 1] > end)
        return min(end, int(rendered.units.edges[later[over.argmax()], 0])) if over.any() else end


def _split(rendered: RenderedDocument, limit: _Limit) -> list[RenderedDocument]:
    if rendered.n_branches:
        return _split_annotations(rendered, limit)
    pieces, start = [], 0
    while start < len(rendered):
        end = limit.end(rendered, start)
        if end == start:  # a unit that no pack can hold: what is before it stays, the rest is lost
            break
        pieces.append(cut(rendered, start, end))
        start = end
    return pieces


def _split_annotations(rendered: RenderedDocument, limit: _Limit) -> list[RenderedDocument]:
    """Pieces with as many whole annotations as fit after the prefix; one that fits in no piece is cut short."""
    edges = np.searchsorted(rendered.branch_ids, np.arange(1, rendered.n_branches + 2))
    pieces, first = [], 0
    while first < rendered.n_branches:
        last = first + 1
        piece = _with_prefix(rendered, int(edges[first]), int(edges[last]))
        while last < rendered.n_branches:
            longer = _with_prefix(rendered, int(edges[first]), int(edges[last + 1]))
            if not limit.fits(longer, 0, len(longer)):
                break
            piece, last = longer, last + 1
        pieces.append(cut(piece, 0, limit.end(piece, 0)))
        first = last
    return pieces


def _with_prefix(rendered: RenderedDocument, start: int, end: int) -> RenderedDocument:
    """The shared prefix and the tokens ``[start, end)`` of some annotations, numbered from 1."""
    prefix, rest = cut(rendered, 0, rendered.n_shared), cut(rendered, start, end)
    branches = rest.branch_ids - (rest.branch_ids[0] - 1)
    joined = {
        name: np.concatenate([getattr(prefix, name), getattr(rest, name)])
        for name in ("tokens", "labels", "loss_weights")
    }
    shifted = np.where(rest.unit_ids >= 0, rest.unit_ids + len(prefix.units), rest.unit_ids).astype(np.int32)
    groups = np.concatenate([rendered.group_ids[: rendered.n_shared], rendered.group_ids[start:end]])
    positions, n_media = rendered.position_ids, int(prefix.units.media.max(initial=-1)) + 1
    return replace(
        rendered,
        **joined,
        position_ids=np.concatenate([positions[:, : rendered.n_shared], positions[:, start:end]], axis=1),
        branch_ids=np.concatenate([prefix.branch_ids, branches.astype(np.int32)]),
        unit_ids=np.concatenate([prefix.unit_ids, shifted]),
        group_ids=renumbered(groups),
        units=Units.joined([prefix.units, rest.units.moved(rendered.n_shared, n_media)]),
        n_branches=int(branches.max(initial=0)),
        label_cut=rest.label_cut,
        medium_cut=rest.medium_cut,
        columns=joined_columns([prefix, rest]),
    )
