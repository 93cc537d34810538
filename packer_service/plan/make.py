"""A plan from columns of integers: align, pack, weigh, order, place."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
from jaxtyping import Float64, Int, Int64

from preshard.packer_service.plan.blend import tokens_by_source
from preshard.packer_service.plan.cost import CostModel, pack_cost, vision_cost
from preshard.packer_service.plan.kinds import sort_rows
from preshard.packer_service.plan.order import check_window, partition_seed, step_order
from preshard.packer_service.plan.pack import pack_documents
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import PlanError
from preshard.schemas.manifest import LayerMasks


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A plan in columns: one row per packed document, pack by pack in step order.

    Inside a pack, documents stand in ascending order of ``document`` and lie one after the other from position 0: a
    document starts where the aligned length of the one before it ends. The rows of pack p are
    ``pack_edges[p]:pack_edges[p + 1]``, so packs can neither overlap nor lose a row.

    Attributes:
        seq_len: tokens of every pack, padding included.
        document: index of the document in the table of measured documents.
        start: position of the document's first token in its pack.
        length: real tokens.
        aligned_length: tokens that the document takes up, its padding at the end included.
        cost: cost of each pack in GFLOP, in step order.
        vision: the vision encoder's part of it.
        pack_edges: the first row of each pack, then the number of rows. Packs are numbered from 0 in step order.
    """

    seq_len: int
    document: Int64[np.ndarray, "docs"]
    start: Int64[np.ndarray, "docs"]
    length: Int64[np.ndarray, "docs"]
    aligned_length: Int64[np.ndarray, "docs"]
    cost: Float64[np.ndarray, "packs"]
    vision: Float64[np.ndarray, "packs"]
    pack_edges: Int64[np.ndarray, "packs_plus_1"]

    @property
    def n_packs(self) -> int:
        return len(self.pack_edges) - 1

    @property
    def n_documents(self) -> int:
        return len(self.document)

    @property
    def pack_id(self) -> Int64[np.ndarray, "docs"]:
        """Each document's pack."""
        return np.repeat(np.arange(self.n_packs), np.diff(self.pack_edges))

    def rows(self, pack_id: int) -> slice:
        """The rows of one pack."""
        return slice(int(self.pack_edges[pack_id]), int(self.pack_edges[pack_id + 1]))


_PASS_STEP = 0x2545F4914F6CDD1D
"""Difference of the salts of two passes: odd and large, so that the pass of one seed has no salt of another's."""


class Columns(Protocol):
    """Columns by name that NumPy turns into arrays: a dictionary of arrays, or a table."""

    def __getitem__(self, name: str, /) -> Any: ...


def align_lengths(tokens: Int64[np.ndarray, "docs"], alignment: int) -> Int64[np.ndarray, "docs"]:
    """Tokens rounded up to multiples of ``alignment``.

    Raises:
        PlanError: ``alignment`` is not positive.
    """
    if alignment < 1:
        raise PlanError(f"alignment is {alignment}; give 1 for none, or a positive number of tokens")
    return -(-tokens // alignment) * alignment


def make_plan(
    *,
    tokens: Int64[np.ndarray, "docs"],
    images: Int64[np.ndarray, "docs"],
    areas: Int64[np.ndarray, "docs"],
    patches: Int64[np.ndarray, "docs"] | None = None,
    loads: Int64[np.ndarray, "docs"] | None = None,
    seq_len: int,
    max_images: int | None,
    max_patches: int | None = None,
    alignment: int,
    window: int,
    seed: int,
    cost_model: CostModel,
    sources: Int[np.ndarray, "docs"] | None = None,
    passes: Int[np.ndarray, "docs"] | None = None,
    epochs: Int[np.ndarray, "docs"] | None = None,
) -> Plan:
    """Puts every document in one pack and the packs in step order.

    Args:
        tokens: real tokens of each document, at least 1.
        images: crops of each document.
        areas: allowed pairs of each document's mask.
        patches: patches that the vision encoder sees of each document; None for those of square crops.
        loads: the vision encoder's work for each document; None for that of square crops.
        seq_len: tokens of a pack.
        max_images: crops that a pack may hold; None for no limit.
        max_patches: patches that a pack may hold; None for no limit.
        alignment: documents start at multiples of this many tokens.
        window: packs of a group of nearly equal cost, see :func:`~preshard.packer_service.plan.order.step_order`.
        seed: chooses the order of the packs, and which documents share one.
        cost_model: weighs linear, attention and vision work.
        sources: number of each document's source, from 0, which the order of the packs mixes evenly; None for one.
        passes: of each document, ascending; a pack holds documents of one pass. None for one.
        epochs: of each document, ascending; an epoch is one or more passes. None for one.

    Returns:
        The plan; without documents it has no packs. The same arguments give the same plan everywhere.

    Raises:
        PlanError: a document is empty or above a budget, or an argument cannot be used.
    """
    tokens, images = (np.asarray(column, np.int64) for column in (tokens, images))
    check_window(window)
    _check_columns(tokens, areas)
    aligned = align_lengths(tokens, alignment)
    if max_patches is not None:
        patches = images * cost_model.vision.patches_per_crop if patches is None else np.asarray(patches, np.int64)
    opened_in = np.zeros(len(tokens), np.int64)
    n_packs = 0
    for number, part in _parts(len(tokens), passes):
        opened_in[part] = n_packs + pack_documents(
            aligned[part],
            images[part],
            seq_len=seq_len,
            max_images=max_images,
            patches=None if patches is None else patches[part],
            max_patches=max_patches,
            salt=(seed + number * _PASS_STEP) % 2**64,
            sources=None if sources is None else np.asarray(sources)[part],
        )
        n_packs = int(opened_in[part].max()) + 1
    loads = images * cost_model.vision_work_per_crop if loads is None else np.asarray(loads, np.int64)
    pack_loads = _sum_by_pack(opened_in, loads, n_packs)
    vision = vision_cost(pack_loads)
    cost = pack_cost(
        cost_model,
        seq_len=seq_len,
        tiles=np.bincount(
            opened_in, weights=cost_model.attended_tiles(tokens, np.asarray(areas, np.int64)), minlength=n_packs
        ),
        loads=pack_loads,
    )
    del images, patches, loads  # a copy each, beside which those of the plan would be made
    order = step_order(
        cost,
        window=window,
        seed=seed,
        vision=vision,
        tokens=None if sources is None else tokens_by_source(opened_in, np.asarray(sources), tokens, n_packs),
        epochs=None if epochs is None else _epochs_of_packs(opened_in, np.asarray(epochs), n_packs),
    )
    position = np.empty(n_packs, np.int64)
    position[order] = np.arange(n_packs)
    pack_of = position[opened_in]
    del opened_in
    edges = np.concatenate([[0], np.cumsum(np.bincount(pack_of, minlength=n_packs))]).astype(np.int64)
    document = sort_rows(pack_of)
    aligned_length = aligned[document]
    return Plan(
        seq_len=seq_len,
        document=document,
        start=_starts(aligned_length, edges),
        length=tokens[document],
        aligned_length=aligned_length,
        cost=cost[order],
        vision=vision[order],
        pack_edges=edges,
    )


def _parts(n_documents: int, passes: Int[np.ndarray, "docs"] | None) -> list[tuple[int, slice]]:
    """The number and the documents of each pass."""
    if passes is None:
        return [(0, slice(0, n_documents))] if n_documents else []
    column = np.asarray(passes)
    assert (np.diff(column) >= 0).all(), "passes ascend"
    numbers, firsts = np.unique(column, return_index=True)
    edges = [*firsts.tolist(), n_documents]
    return [(number, slice(*edge)) for number, edge in zip(numbers.tolist(), pairwise(edges), strict=True)]


def _epochs_of_packs(
    pack: Int64[np.ndarray, "docs"], epochs: Int[np.ndarray, "docs"], n_packs: int
) -> Int64[np.ndarray, "packs"]:
    found = np.zeros(n_packs, np.int64)
    found[pack] = epochs
    return found


def plan_documents(columns: Columns, config: PackConfig, partition: int = 0, layers: LayerMasks | None = None) -> Plan:
    """The plan of a packing job: :func:`make_plan` with the arguments that its configuration gives.

    Args:
        columns: ``tokens``, ``images``, ``patches``, ``load`` and ``area`` of the documents, ``source_number``,
            ``pass_number`` and ``stage``. Only columns are held here, and no array made of one, since those would live
            as long as the planning.
        config: the configuration of the job.
        partition: number of the partition that the documents are; each shuffles its steps in its own way.
        layers: the model's, where some have a window.

    Raises:
        PlanError: as :func:`make_plan`.
    """
    return make_plan(
        tokens=np.asarray(columns["tokens"]),
        images=np.asarray(columns["images"]),
        areas=np.asarray(columns["area"]),
        patches=np.asarray(columns["patches"]),
        loads=np.asarray(columns["load"]),
        seq_len=config.seq_len,
        max_images=config.max_images,
        max_patches=config.max_patches,
        alignment=config.alignment,
        window=config.order.window,
        seed=partition_seed(config.order.seed, partition),
        cost_model=CostModel.of(config, layers),
        sources=np.asarray(columns["source_number"]),
        passes=np.asarray(columns["pass_number"]),
        epochs=np.asarray(columns["stage"]),
    )


def _check_columns(tokens: Int64[np.ndarray, "docs"], areas: Int64[np.ndarray, "docs"]) -> None:
    if len(areas) != len(tokens):
        raise PlanError(
            f"{len(tokens)} documents have tokens but {len(areas)} have areas; give one of each per document"
        )
    for name, column in (("tokens", tokens), ("area", areas)):
        if (column < 1).any():
            index = int(np.flatnonzero(column < 1)[0])
            raise PlanError(f"document {index} has {name} {column[index]}; leave empty documents out")


def _sum_by_pack(
    pack: Int64[np.ndarray, "docs"], values: Int64[np.ndarray, "docs"], n_packs: int
) -> Int64[np.ndarray, "packs"]:
    sums = np.zeros(n_packs, np.int64)
    np.add.at(sums, pack, values)
    return sums


def _starts(
    aligned_length: Int64[np.ndarray, "docs"], pack_edges: Int64[np.ndarray, "packs_plus_1"]
) -> Int64[np.ndarray, "docs"]:
    before = np.cumsum(aligned_length) - aligned_length
    first_rows = pack_edges[:-1]
    return before - np.repeat(before[first_rows], np.diff(pack_edges))
