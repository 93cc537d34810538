"""A rendered document: the token arrays that it fills in a pack, and the rules by which one follows from another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float32, Int32, Int64

from preshard.packer_service.packs.units import Units
from preshard.schemas.errors import DocumentError
from preshard.schemas.sequence import CAUSAL_ONLY, IGNORE_INDEX, NOT_POOLED


def grid_positions(
    unit_ids: Int32[np.ndarray, "doc"],
    grids: Int64[np.ndarray, "units 3"],
    media: Int64[np.ndarray, "units"],
    time_steps: Float32[np.ndarray, "units"],
    merge: int,
) -> Int32[np.ndarray, "3 doc"]:
    """Positions of a document that stands alone.

    Text counts up on all three axes together. Rows that follow each other without a token in between and belong to the
    same image or video form a block: from the position that text would have next, rows count along the block's time,
    height and width. Text after a block goes on from its larger side of height and width (Wang et al. 2024, Qwen2-VL,
    section 2.1).

    Args:
        unit_ids: the unit that a row belongs to, -1 for any other token.
        grids: each unit's patches along time, height and width; a row stands for ``merge`` x ``merge`` of them.
        media: the number of the image or video that each unit belongs to.
        time_steps: how much the temporal position grows from unit to unit of a block; it is rounded down.
        merge: patches along one side of a row's square.
    """
    positions = np.empty((3, len(unit_ids)), np.int32)
    media_of = np.where(unit_ids >= 0, media[unit_ids] if len(media) else 0, -1)
    changes = np.flatnonzero(media_of[1:] != media_of[:-1]) + 1
    edges = [0, *changes.tolist(), len(unit_ids)] if len(unit_ids) else []
    following = 0
    for start, end in pairwise(edges):
        if media_of[start] < 0:
            positions[:, start:end] = np.arange(following, following + end - start)
            following += end - start
            continue
        unit = unit_ids[start]
        height, width = grids[unit, 1] // merge, grids[unit, 2] // merge
        time, row = np.divmod(np.arange(end - start), height * width)
        step = np.float32(time_steps[unit])
        positions[0, start:end] = following + (time.astype(np.float32) * step).astype(np.int64)
        positions[1, start:end] = following + row // width
        positions[2, start:end] = following + row % width
        following += int(max(height, width))
    return positions


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedDocument:
    """A document's token arrays (or those of a piece of it); positions and units count from its own start.

    ``unit_ids`` is the unit that a pooled image token belongs to, -1 elsewhere; ``group_ids`` are counted from 0 inside
    the document, -1 for tokens that see no later one. The first ``n_shared`` tokens are the prefix that all
    ``n_branches`` annotations see; both are 0 for a document without annotations. ``merge`` is the
    side of the square of patches that one row stands for, where positions have three axes. ``media`` holds what
    decoding needs of every image and video of the whole document (see ``ingest.media.shape.ProbedMedium``), or where
    the crops of every unit are stored (``ingest.crops.StoredCrops``), and nothing here looks at it.
    ``preference`` says that its two branches are a better and a worse answer to the prefix.
    ``label_cut`` and ``medium_cut`` say what a cut at its end took: the label of its last token, because the next token
    carries loss and lies behind the cut, and the rest of a video. ``truncated`` counts the tokens after it that are in
    no piece. ``origin`` is the stored pack that the document, or a part of it, was taken out of
    (``ingest.packed.pack.StoredPack``), and nothing here looks at it either. ``columns`` are the columns of tokens;
    entry i belongs to the token that follows token i in its branch, even behind a cut, so that joining pieces gives
    them back. ``kept`` are the values of columns that documents keep.
    """

    tokens: Int32[np.ndarray, "doc"]
    labels: Int32[np.ndarray, "doc"]
    loss_weights: Float32[np.ndarray, "doc"]
    position_ids: Int32[np.ndarray, "axes doc"]
    branch_ids: Int32[np.ndarray, "doc"]
    group_ids: Int32[np.ndarray, "doc"]
    unit_ids: Int32[np.ndarray, "doc"]
    units: Units
    n_shared: int
    n_branches: int
    merge: int = 1
    media: tuple[Any, ...] = ()
    preference: bool = False
    label_cut: bool = False
    medium_cut: bool = False
    truncated: int = 0
    origin: Any = None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def n_images(self) -> int:
        """Number of crops, which the second budget of a pack counts."""
        return int(self.units.crops.sum())


def shifted_labels(
    tokens: Int32[np.ndarray, "doc"], loss: np.ndarray, branch_ids: Int32[np.ndarray, "doc"]
) -> Int32[np.ndarray, "doc"]:
    """Each token's label: the next token, where that token carries loss and belongs to the same branch."""
    labels = np.full(len(tokens), IGNORE_INDEX, np.int32)
    follows = loss[1:] & (branch_ids[1:] == branch_ids[:-1])
    labels[:-1][follows] = tokens[1:][follows]
    return labels


def branch_positions(branch_ids: Int32[np.ndarray, "doc"]) -> Int32[np.ndarray, "doc"]:
    """Positions from 0; each annotation continues from the end of the shared prefix."""
    every = np.arange(len(branch_ids), dtype=np.int32)
    if not branch_ids.any():
        return every
    n_shared = int(np.searchsorted(branch_ids, 1))
    starts = np.searchsorted(branch_ids, branch_ids)
    return np.where(branch_ids == 0, every, n_shared + every - starts).astype(np.int32)


def document_positions(
    branch_ids: Int32[np.ndarray, "doc"], unit_ids: Int32[np.ndarray, "doc"], units: Units, *, axes: int, merge: int = 1
) -> Int32[np.ndarray, "axes doc"]:
    """Positions of a document that stands alone; an annotation's are those that it has right after the shared prefix.

    Args:
        branch_ids: 0 for the shared prefix or without annotations, then the annotations in order.
        unit_ids: the unit that a row belongs to, -1 for any other token.
        units: the document's units.
        axes: 1, or 3 for time, height and width.
        merge: see :func:`~preshard.packer_service.packs.rendered.grid_positions`.
    """
    if axes == 1:
        return branch_positions(branch_ids)[None]
    edges = [*np.searchsorted(branch_ids, np.arange(branch_ids.max(initial=0) + 1)).tolist(), len(branch_ids)]
    n_shared, parts = edges[1], []
    for start, end in pairwise(edges[1:]):
        if start == end:  # a part of a document may lack its first annotations
            continue
        alone = np.concatenate([unit_ids[:n_shared], unit_ids[start:end]])
        parts.append(grid_positions(alone, units.grids, units.media, units.time_steps.astype(np.float32), merge))
    if not parts:
        return grid_positions(unit_ids, units.grids, units.media, units.time_steps.astype(np.float32), merge)
    return np.concatenate([parts[0], *(part[:, n_shared:] for part in parts[1:])], axis=1)


def groups_of_units(unit_ids: Int32[np.ndarray, "doc"], bidirectional: str) -> Int32[np.ndarray, "doc"]:
    """Groups of a document's tokens that see each other in both directions, counted from 0 inside the document.

    ``within_image``: the pooled tokens of a unit; ``image_tokens``: all pooled tokens; ``none``: no tokens.
    """
    if bidirectional == "within_image":
        return unit_ids
    inside = (unit_ids >= 0) & (bidirectional == "image_tokens")
    return np.where(inside, 0, CAUSAL_ONLY).astype(np.int32)


def renumbered(group_ids: Int32[np.ndarray, "doc"]) -> Int32[np.ndarray, "doc"]:
    """The same groups, numbered from 0 without a gap."""
    used, numbers = np.unique(group_ids, return_inverse=True)
    first = int(np.searchsorted(used, 0))
    return np.where(group_ids >= 0, numbers - first, CAUSAL_ONLY).astype(np.int32)


def cut(rendered: RenderedDocument, start: int, end: int) -> RenderedDocument:
    """The tokens ``[start, end)`` as a document of their own. No unit may lie across either edge."""
    edges = rendered.units.edges
    units = np.flatnonzero((edges[:, 0] >= start) & (edges[:, 1] <= end))
    unit_ids = rendered.unit_ids[start:end]
    unit_ids = np.where(unit_ids >= 0, unit_ids - (units[0] if len(units) else 0), NOT_POOLED).astype(np.int32)
    branch_ids, inside = rendered.branch_ids[start:end], rendered.units.of(units).moved(-start)
    reaches_end = end == len(rendered)
    labels = rendered.labels[start:end].copy()
    label_cut = rendered.label_cut if reaches_end else bool((labels[-1:] != IGNORE_INDEX).any())
    labels[-1:] = IGNORE_INDEX
    return replace(
        rendered,
        tokens=rendered.tokens[start:end],
        labels=labels,
        loss_weights=np.where(labels == IGNORE_INDEX, 0, rendered.loss_weights[start:end]).astype(np.float32),
        position_ids=document_positions(
            branch_ids, unit_ids, inside, axes=len(rendered.position_ids), merge=rendered.merge
        ),
        branch_ids=branch_ids,
        group_ids=renumbered(rendered.group_ids[start:end]),
        unit_ids=unit_ids,
        units=inside,
        n_branches=int(branch_ids.max(initial=0)),
        label_cut=label_cut,
        medium_cut=_cuts_medium(rendered, units),
        columns={name: values[start:end] for name, values in rendered.columns.items()},
    )


def joined_columns(parts: Sequence[RenderedDocument]) -> dict[str, np.ndarray]:
    """The columns of parts that follow one another."""
    return {name: np.concatenate([part.columns[name] for part in parts]) for name in parts[0].columns}


def _cuts_medium(rendered: RenderedDocument, inside: Int64[np.ndarray, "some"]) -> bool:
    """Whether the image or video of the last of these units goes on behind them."""
    if not len(inside):
        return False
    following = int(inside[-1]) + 1
    media = rendered.units.media
    return rendered.medium_cut if following == len(media) else bool(media[following] == media[following - 1])


def join_pair(chosen: RenderedDocument, rejected: RenderedDocument) -> RenderedDocument:
    """Two answers to one prompt, each rendered alone, as two branches of the prefix that they have in common.

    The prefix ends before the first token that has a label in either: it would need one for each branch. So the last
    token of a prompt is in both branches, and each label is that of the answer alone.

    Raises:
        DocumentError: ``bad_row``: the answers are the same, or an image or video lies in one or ends the prompt.
    """
    shorter = min(len(chosen), len(rejected))
    differs = np.flatnonzero(chosen.tokens[:shorter] != rejected.tokens[:shorter])
    if not len(differs) and len(chosen) == len(rejected):
        raise DocumentError("bad_row", "chosen and rejected have the same tokens; give two different answers")
    labelled = (int((side.labels != IGNORE_INDEX).argmax()) for side in (chosen, rejected))
    n_shared = min(*labelled, int(differs[0]) if len(differs) else shorter)
    if any(int(side.units.edges.max(initial=0)) > n_shared for side in (chosen, rejected)):
        raise DocumentError(
            "bad_row",
            "an image or video lies in chosen or rejected, or ends the prompt; put it into the prompt, before text",
        )
    branch_ids = np.repeat(np.array([0, 1, 2], np.int32), [n_shared, len(chosen) - n_shared, len(rejected) - n_shared])
    names = ("tokens", "labels", "loss_weights", "position_ids", "group_ids", "unit_ids")
    sides = [(getattr(chosen, name), getattr(rejected, name)) for name in names]
    joined: dict[str, Any] = {
        name: np.concatenate([first, second[..., n_shared:]], axis=-1)
        for name, (first, second) in zip(names, sides, strict=True)
    }
    columns = {
        name: np.concatenate([values, rejected.columns[name][n_shared:]]) for name, values in chosen.columns.items()
    }
    return replace(
        chosen,
        **joined,
        columns=columns,
        branch_ids=branch_ids,
        n_shared=n_shared,
        n_branches=2,
        preference=True,
    )
