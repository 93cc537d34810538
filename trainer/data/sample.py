"""One sample's bytes to arrays and pixels: its header part, and the images of one rank as one contiguous range."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, UInt8
from PIL import Image

from schemas.codec import LAYOUTS, SEQUENCE, TAR_BLOCK, image_member
from schemas.config import PackConfig
from schemas.errors import (
    BoundariesInvalid,
    ImagesInvalid,
    LayoutError,
    LayoutNotPartition,
    LayoutsInvalid,
    MembersInvalid,
    PoolingInvalid,
)
from schemas.header import SampleHeader, decode_header, read_member
from schemas.layout import TokenLayout, boundaries_from_edges, check_partition
from schemas.manifest import SampleHead
from schemas.sequence import NOT_POOLED, PackedSequence
from trainer.data.files import DatasetFiles, PackPlace


def read_header(files: DatasetFiles, place: PackPlace, config: PackConfig) -> SampleHeader:
    """Reads and decodes a sample's header part: all of it, and no byte more.

    Raises:
        FormatError: as of :func:`schemas.header.decode_header`.
    """
    data = files.read_range(place.shard, place.offset, place.header_size)
    return decode_header(data, place.pack_id, config, place.where)


def token_layout(header: SampleHeader, name: str, seq_len: int, where: str) -> TokenLayout:
    """A layout by its name.

    A layout with a token twice would train on it twice, and without an error: the runs must be a partition.

    Raises:
        LayoutsInvalid: there is none of this name.
        LayoutNotPartition: its runs do not give every token to one rank, in equal slices.
    """
    layout = header.layouts.get(name)
    if layout is None:
        raise LayoutsInvalid(f"{where}.{LAYOUTS}", f"holds no {name}, only {', '.join(header.layouts)}")
    try:
        check_partition(layout, seq_len)
    except LayoutError as error:
        raise LayoutNotPartition(f"{where}.{LAYOUTS}", str(error)) from None
    return layout


@dataclass(frozen=True, kw_only=True, slots=True)
class ImageEdges:
    """Whose images are whose: rank r holds the crops ``images[r]:images[r + 1]``, which make the rows of ``pooled``."""

    images: Int64[np.ndarray, "ranks_plus_1"]
    pooled: Int64[np.ndarray, "ranks_plus_1"]


def image_edges(head: SampleHead, cp_size: int, where: str) -> ImageEdges:
    """The head's boundaries for a CP size as edges, which can neither overlap nor leave a gap.

    Features are gathered in rank order, so boundaries in any other order would put them on the wrong tokens without an
    error: the edges that the starts give must make the same dict again.

    Raises:
        BoundariesInvalid: none for this size, or they are not consecutive whole units in rank order that cover all.
    """
    stored = head.image_shard_boundaries.get(str(cp_size))
    if stored is None:
        sizes = ", ".join(head.image_shard_boundaries)
        raise BoundariesInvalid(
            where, f"image_shard_boundaries: none for cp_size {cp_size}; there are those for {sizes}"
        )
    crops = np.concatenate([[0], np.array(head.cum_image_bounds, np.int64)])
    pooled = np.concatenate([[0], np.array(head.cum_token_pooling_bounds, np.int64)])
    ranks = [stored.get(str(rank)) for rank in range(cp_size)]
    starts = [rank["start_image_idx"] for rank in ranks if rank is not None]
    edges = np.searchsorted(crops, [*starts, crops[-1]])
    if (
        len(starts) == cp_size
        and len(crops) == len(pooled)
        and crops[-1] == len(head.images)
        and edges.max() < len(crops)
        and boundaries_from_edges(edges, crops[1:], pooled[1:]) == stored
    ):
        return ImageEdges(images=crops[edges], pooled=pooled[edges])
    raise BoundariesInvalid(
        where, f"image_shard_boundaries for cp_size {cp_size} are not consecutive units in rank order: {stored}"
    )


def pool_positions(sequence: PackedSequence, n_rows: int, where: str) -> Int64[np.ndarray, "pooled"]:
    """Natural position of the token that each pooled row of the pack fills.

    Ranks send features to tokens by this: a row without a token, or with two, would leave a rank waiting for it.

    Raises:
        PoolingInvalid: not every one of ``n_rows`` rows fills exactly one token.
    """
    filled = np.flatnonzero(sequence.pool_ids != NOT_POOLED)
    rows = sequence.pool_ids[filled]
    order = np.argsort(rows, kind="stable")
    if not np.array_equal(rows[order], np.arange(n_rows)):
        raise PoolingInvalid(
            f"{where}.{SEQUENCE}", f"pool_ids of {len(rows)} tokens do not name each of {n_rows} pooled rows once"
        )
    return filled[order]


def read_images(
    files: DatasetFiles,
    place: PackPlace,
    head: SampleHead,
    crops: range,
    *,
    image_size: int,
    image_format: str,
) -> UInt8[np.ndarray, "crops height width 3"]:
    """Reads and decodes consecutive crops of a sample by one range of bytes; none for no crop.

    The range goes from the first crop's tar header to the last crop's last byte.

    Raises:
        ImagesInvalid: a crop does not lie where the head says, or does not decode to an RGB square of ``image_size``.
    """
    pixels = np.empty((len(crops), image_size, image_size, 3), np.uint8)
    if not crops:
        return pixels
    first, last = head.images[crops[0]], head.images[crops[-1]]
    size = last.offset + TAR_BLOCK + last.size - first.offset
    begin = place.header_size + first.offset
    if size < TAR_BLOCK or begin + size > place.size:
        raise ImagesInvalid(place.where, f"crops {crops[0]} to {crops[-1]} lie at byte {begin}, outside of the sample")
    data = files.read_range(place.shard, place.offset + begin, size)
    for i, crop in enumerate(crops):
        stored, name = head.images[crop], image_member(place.key, crop, image_format)
        try:
            content, _ = read_member(data, stored.offset - first.offset, name, place.where)
        except MembersInvalid as error:
            raise ImagesInvalid(place.where, f"crop {crop}: {error.detail}") from None
        if len(content) != stored.size:
            raise ImagesInvalid(place.where, f"crop {crop}: {name} has {len(content)} bytes, not {stored.size}")
        pixels[i] = _decode(content, image_size, f"{place.where}, {name}")
    return pixels


def _decode(content: bytes, image_size: int, where: str) -> UInt8[np.ndarray, "height width 3"]:
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            pixels = np.asarray(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImagesInvalid(where, f"does not decode ({error})") from None
    if pixels.shape != (image_size, image_size, 3) or pixels.dtype != np.uint8:
        raise ImagesInvalid(where, f"decodes to {pixels.dtype}{pixels.shape}, not {image_size} x {image_size} RGB")
    return pixels
