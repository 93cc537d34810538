"""Origin of a rank's part of a sample: stored by the packer, or derived while reading."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int32, Int64

from preshard.schemas.errors import (
    BoundariesInvalid,
    LayoutError,
    LayoutNotPartition,
    LayoutsInvalid,
    PoolingInvalid,
    ReaderError,
)
from preshard.schemas.header import SampleHead, SampleHeader, Unit, decode_header
from preshard.schemas.layout import (
    SCHEMES,
    TokenLayout,
    UnitParts,
    boundaries_from_edges,
    check_partition,
    layout_name,
    segment_edges,
    unit_parts,
)
from preshard.schemas.members import HEAD, LAYOUTS, SEQUENCE
from preshard.schemas.read_config import ReadConfig
from preshard.schemas.sequence import NOT_POOLED, PackedSequence
from preshard.trainer.data.files import DatasetFiles
from preshard.trainer.data.pack_index import PackPlace
from preshard.trainer.extras import load_extra


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """A split of packs over ranks that a dataset can be read with.

    Attributes:
        scheme: the layout's scheme.
        ring_degree: ranks among which the layout deals the pack.
        cp_size: ranks among which the crops are divided.
        layout_stored: whether every sample holds the layout.
        edges_stored: whether every sample holds the image boundaries.
        advice: what packing for the split would gain, one line; empty where all is stored.
    """

    scheme: str
    ring_degree: int
    cp_size: int
    layout_stored: bool
    edges_stored: bool
    advice: str

    @property
    def layout(self) -> str:
        """Name of the layout, as the samples have it."""
        return layout_name(self.scheme, self.ring_degree)


def plan_split(config: ReadConfig, *, layout: str, ring_degree: int, ulysses_degree: int) -> Split:
    """Decides for a split what is read and what is derived.

    Layouts that have a definition (``contiguous``, ``zigzag``) and image boundaries are derived by the packer's own
    functions at degrees that were not planned. Balanced layouts come from a search and exist only where it was made.

    Raises:
        ReaderError: a sample neither holds what the split needs nor lets it be derived; names what would do.
    """
    if layout not in SCHEMES:
        raise ReaderError(f"layout is {layout!r}; the dataset was packed for {listed(config.layouts)}: take one")
    for name, degree in (("ring_degree", ring_degree), ("ulysses_degree", ulysses_degree)):
        if degree < 1:
            raise ReaderError(f"{name} is {degree}; it must be at least 1")
    cp_size = ulysses_degree * ring_degree
    layout_stored = layout in config.layouts and ring_degree in config.ring_degrees
    if not layout_stored:
        load_extra("derived").check_derivable(config, layout, ring_degree)
    if config.seq_len % cp_size:
        raise ReaderError(
            f"ulysses_degree * ring_degree is {cp_size}, which does not divide the dataset's seq_len {config.seq_len}; "
            f"it was packed for {listed(config.cp_sizes)}: take one of these, or another divisor"
        )
    edges_stored = cp_size in config.cp_sizes
    advice = (
        "" if layout_stored and edges_stored else load_extra("derived").advise(config, layout, ring_degree, cp_size)
    )
    return Split(
        scheme=layout,
        ring_degree=ring_degree,
        cp_size=cp_size,
        layout_stored=layout_stored,
        edges_stored=edges_stored,
        advice=advice,
    )


def listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))


def read_header(files: DatasetFiles, place: PackPlace, config: ReadConfig, axes: int) -> SampleHeader:
    """Reads and decodes a sample's header part, and no byte beyond it.

    Raises:
        FormatError: as :func:`preshard.schemas.header.decode_header` does.
    """
    data = files.read_range(place.shard, place.offset, place.header_size)
    return decode_header(data, place.pack_id, place.head_crc32c, config, axes=axes, where=place.where)


def token_layout(header: SampleHeader, split: Split, config: ReadConfig, where: str) -> TokenLayout:
    """The layout of a split: the stored one, or the one that its scheme's definition gives.

    The runs must be a partition: a token listed twice would silently be trained on twice.

    Raises:
        LayoutsInvalid: the sample lacks the layout, or spans overlap from which it would be derived.
        LayoutNotPartition: its runs do not give every token to exactly one rank, in equal slices.
    """
    if split.layout_stored:
        layout = header.layouts.get(split.layout)
    else:
        layout = load_extra("derived").derive_layout(header, split, config, where)
    if layout is None:
        raise LayoutsInvalid(
            f"{where}.{LAYOUTS}", f"{split.layout} is missing; there are only {', '.join(header.layouts)}"
        )
    try:
        check_partition(layout, config.seq_len)
    except LayoutError as error:
        raise LayoutNotPartition(f"{where}.{LAYOUTS}", str(error)) from None
    return layout


def padded_seq_edges(head: SampleHead, seq_len: int, where: str) -> Int32[np.ndarray, "padded_seqs_plus_1"]:
    """Edges of a pack's documents with their alignment padding, and of the gaps between and after them.

    Raises:
        LayoutsInvalid: the head's documents overlap.
    """
    starts = np.array([span.start for span in head.documents], np.int64)
    lengths = np.array([span.aligned_length for span in head.documents], np.int64)
    try:
        return segment_edges(starts, lengths, seq_len).astype(np.int32)
    except LayoutError as error:
        raise LayoutsInvalid(f"{where}.{HEAD}", f"its documents do not lie one after the other: {error}") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class CropEdges:
    """Rank r holds the crops ``crops[r]:crops[r + 1]``, which make the pooled rows ``pooled[r]:pooled[r + 1]``. Unit u
    has the crops ``of_units[u]:of_units[u + 1]``.
    """

    crops: Int64[np.ndarray, "ranks_plus_1"]
    pooled: Int64[np.ndarray, "ranks_plus_1"]
    of_units: Int64[np.ndarray, "units_plus_1"]


def held_units(head: SampleHead, edges: CropEdges, rank: int) -> tuple[tuple[Unit, ...], Int64[np.ndarray, "edges"]]:
    """The units of which a rank holds crops, and where their crops begin among those of the rank.

    Of a unit that it shares with others it has a part: fewer rows, patches and less load.
    """
    start, end = edges.crops[rank : rank + 2].tolist()
    if start == end:
        return (), np.zeros(1, np.int64)
    first, last = (np.searchsorted(edges.of_units, (start, end - 1), side="right") - 1).tolist()
    inner = np.clip(edges.of_units[first : last + 2], start, end)
    counts, whole = np.diff(inner).tolist(), np.diff(edges.of_units[first : last + 2]).tolist()
    units = zip(head.units[first : last + 1], counts, whole, strict=True)
    return tuple(unit if held == of else _part(unit, held, of) for unit, held, of in units), inner - start


def _part(unit: Unit, held: int, of: int) -> Unit:
    """Part of a unit with so many of its crops."""
    shares = {name: getattr(unit, name) * held // of for name in ("rows", "patches", "load")}
    crops = held if unit.grid[0] == of else unit.grid[0]  # in the generic way
    return unit.model_copy(update={**shares, "grid": [crops, *unit.grid[1:]]})


def crop_edges(head: SampleHead, split: Split, where: str, *, shares_crops: bool) -> CropEdges:
    """The boundaries of a CP size as edges, which can neither overlap nor leave a gap: the stored or the best ones.

    Args:
        head: of the sample.
        split: with which it is read.
        where: how errors name the sample.
        shares_crops: whether ranks share the crops of a unit.

    Raises:
        BoundariesInvalid: a planned size has no boundaries, they are not consecutive whole units (or
            crops) in rank order, or the units do not cover the crops.
    """
    crops = np.concatenate([[0], np.array(head.cum_image_bounds, np.int64)])
    pooled = np.concatenate([[0], np.array(head.cum_token_pooling_bounds, np.int64)])
    if not (len(crops) == len(pooled) == len(head.units) + 1 and crops[-1] == len(head.images)):
        raise BoundariesInvalid(
            where,
            f"cum_image_bounds {head.cum_image_bounds!r:.200} of {len(head.units)} units and {len(head.images)} images",
        )
    if (np.diff(crops) < 0).any() or (np.diff(pooled) < 0).any() or sum(unit.load for unit in head.units) >= 2**63:
        raise BoundariesInvalid(where, "the bounds of its units do not ascend, or their loads cannot be summed")
    loads = np.array([unit.load for unit in head.units], np.int64)
    parts = unit_parts(crops[1:], pooled[1:], loads, shares_crops=shares_crops)
    if split.edges_stored:
        edges = _stored_edges(head, split.cp_size, parts, where)
    else:
        edges = load_extra("derived").derive_edges(parts.loads, split.cp_size)
    at_crops, at_rows = (np.concatenate([[0], each])[edges] for each in (parts.crops, parts.rows))
    return CropEdges(crops=at_crops, pooled=at_rows, of_units=crops)


def _stored_edges(head: SampleHead, cp_size: int, parts: UnitParts, where: str) -> Int64[np.ndarray, "ranks_plus_1"]:
    """Edges from the head's boundaries.

    Features are gathered in rank order, so boundaries in any other order would silently put them on the wrong tokens.
    The edges made from the ranks' starts must therefore give the stored dict again.
    """
    stored = head.image_shard_boundaries.get(str(cp_size))
    if stored is None:
        sizes = listed(head.image_shard_boundaries)
        raise BoundariesInvalid(where, f"image_shard_boundaries has no cp_size {cp_size}; it has {sizes}")
    starts = [stored[str(rank)]["start_image_idx"] for rank in range(cp_size) if str(rank) in stored]
    upto = np.concatenate([[0], parts.crops])
    edges = np.searchsorted(upto, [*starts, upto[-1]])
    if (
        len(starts) == cp_size
        and edges.max() < len(upto)
        and boundaries_from_edges(edges, parts.crops, parts.rows) == stored
    ):
        return edges
    raise BoundariesInvalid(
        where, f"image_shard_boundaries for cp_size {cp_size} are not consecutive units in rank order: {stored!r:.400}"
    )


def pool_positions(sequence: PackedSequence, n_rows: int, where: str) -> Int64[np.ndarray, "pooled"]:
    """The natural position of the token that each pooled row of the pack fills.

    Ranks exchange features by it: a row with no token, or with two, would leave a rank waiting.

    Raises:
        PoolingInvalid: one of the ``n_rows`` rows does not fill exactly one token.
    """
    filled = np.flatnonzero(sequence.pool_ids != NOT_POOLED)
    rows = sequence.pool_ids[filled]
    order = np.argsort(rows, kind="stable")
    if len(rows) != n_rows or not np.array_equal(rows[order], np.arange(n_rows)):
        raise PoolingInvalid(
            f"{where}.{SEQUENCE}", f"pool_ids of {len(rows)} tokens do not name each of {n_rows} pooled rows once"
        )
    return filled[order]
