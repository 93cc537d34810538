"""One sample's header part: the layout, whose crops are whose, and which token each pooled row fills."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from schemas.codec import LAYOUTS, SEQUENCE
from schemas.config import PackConfig
from schemas.errors import BoundariesInvalid, LayoutError, LayoutNotPartition, LayoutsInvalid, PoolingInvalid
from schemas.header import SampleHeader, decode_header
from schemas.layout import TokenLayout, boundaries_from_edges, check_partition
from schemas.manifest import SampleHead
from schemas.sequence import NOT_POOLED, PackedSequence
from trainer.data.files import DatasetFiles
from trainer.data.pack_index import PackPlace


def read_header(files: DatasetFiles, place: PackPlace, config: PackConfig, axes: int) -> SampleHeader:
    """Reads and decodes a sample's header part, and no byte beyond it.

    Raises:
        FormatError: as :func:`schemas.header.decode_header` does.
    """
    data = files.read_range(place.shard, place.offset, place.header_size)
    return decode_header(data, place.pack_id, place.head_crc32c, config, axes=axes, where=place.where)


def token_layout(header: SampleHeader, name: str, seq_len: int, where: str) -> TokenLayout:
    """A layout by its name.

    The runs must be a partition: a token listed twice would silently be trained on twice.

    Raises:
        LayoutsInvalid: the sample has no layout of this name.
        LayoutNotPartition: its runs do not give every token to exactly one rank, in equal slices.
    """
    layout = header.layouts.get(name)
    if layout is None:
        raise LayoutsInvalid(f"{where}.{LAYOUTS}", f"{name} is missing; there are only {', '.join(header.layouts)}")
    try:
        check_partition(layout, seq_len)
    except LayoutError as error:
        raise LayoutNotPartition(f"{where}.{LAYOUTS}", str(error)) from None
    return layout


@dataclass(frozen=True, kw_only=True, slots=True)
class CropEdges:
    """Rank r holds the units ``units[r]:units[r + 1]``: the crops ``crops[r]:crops[r + 1]``, which make the pooled rows
    ``pooled[r]:pooled[r + 1]``. Unit u has the crops ``of_units[u]:of_units[u + 1]``.
    """

    units: Int64[np.ndarray, "ranks_plus_1"]
    crops: Int64[np.ndarray, "ranks_plus_1"]
    pooled: Int64[np.ndarray, "ranks_plus_1"]
    of_units: Int64[np.ndarray, "units_plus_1"]


def crop_edges(head: SampleHead, cp_size: int, where: str) -> CropEdges:
    """The head's boundaries for a CP size as edges, which can neither overlap nor leave a gap.

    Features are gathered in rank order, so boundaries in any other order would silently put them on the wrong tokens.
    The edges made from the ranks' starts must therefore give the stored dict again.

    Raises:
        BoundariesInvalid: there are none for this size, or they are not consecutive whole units in rank order.
    """
    stored = head.image_shard_boundaries.get(str(cp_size))
    if stored is None:
        sizes = ", ".join(head.image_shard_boundaries)
        raise BoundariesInvalid(
            where, f"image_shard_boundaries: missing for cp_size {cp_size}; there are those for {sizes}"
        )
    crops = np.concatenate([[0], np.array(head.cum_image_bounds, np.int64)])
    pooled = np.concatenate([[0], np.array(head.cum_token_pooling_bounds, np.int64)])
    ranks = [stored.get(str(rank)) for rank in range(cp_size)]
    starts = [rank["start_image_idx"] for rank in ranks if rank is not None]
    edges = np.searchsorted(crops, [*starts, crops[-1]])
    if (
        len(starts) == cp_size
        and len(crops) == len(pooled) == len(head.units) + 1
        and crops[-1] == len(head.images)
        and edges.max() < len(crops)
        and boundaries_from_edges(edges, crops[1:], pooled[1:]) == stored
    ):
        return CropEdges(units=edges, crops=crops[edges], pooled=pooled[edges], of_units=crops)
    raise BoundariesInvalid(
        where, f"image_shard_boundaries for cp_size {cp_size} are not consecutive units in rank order: {stored}"
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
    if not np.array_equal(rows[order], np.arange(n_rows)):
        raise PoolingInvalid(
            f"{where}.{SEQUENCE}", f"pool_ids of {len(rows)} tokens do not name each of {n_rows} pooled rows once"
        )
    return filled[order]
