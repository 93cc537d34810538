"""One sample's bytes to arrays and pixels: its header part, and the images of one rank as one contiguous range."""

from __future__ import annotations

import io
import tarfile
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, UInt8
from PIL import Image

from schemas.codec import (
    HEAD,
    LAYOUTS,
    SEQUENCE,
    TAR_BLOCK,
    decode_head,
    decode_layouts,
    decode_sequence,
    image_member,
)
from schemas.errors import (
    BoundariesInvalid,
    ImagesInvalid,
    LayoutNotPartition,
    LayoutsInvalid,
    MembersInvalid,
    PackRowInvalid,
    PoolingInvalid,
)
from schemas.layout import TokenLayout, boundaries_from_edges
from schemas.manifest import SampleHead
from schemas.sequence import NOT_POOLED, PackedSequence
from trainer.files import DatasetFiles, PackPlace


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleHeader:
    """What every rank reads of a sample."""

    head: SampleHead
    sequence: PackedSequence
    layouts: dict[str, TokenLayout]


def read_header(files: DatasetFiles, place: PackPlace, seq_len: int) -> SampleHeader:
    """Reads and decodes a sample's header part: all of it, and no byte more.

    Raises:
        MembersInvalid: other members than the head, the sequence and the layouts, under the pack's key.
        SampleHeadInvalid, SequenceInvalid, LayoutsInvalid: a member is not what the format says.
        PackRowInvalid: the head is of another pack.
    """
    data = files.read_range(place.shard, place.offset, place.header_size)
    members, at = {}, 0
    for extension in (HEAD, SEQUENCE, LAYOUTS):
        members[extension], at = _member(data, at, f"{place.key}.{extension}", place.where)
    if at != place.header_size:
        raise MembersInvalid(place.where, f"header part ends after {at} bytes, not {place.header_size}")
    head = decode_head(members[HEAD], f"{place.where}.{HEAD}")
    if head.pack_id != place.pack_id:
        raise PackRowInvalid(place.where, f"holds pack {head.pack_id}, not {place.pack_id}")
    return SampleHeader(
        head=head,
        sequence=decode_sequence(members[SEQUENCE], seq_len, f"{place.where}.{SEQUENCE}"),
        layouts=decode_layouts(members[LAYOUTS], f"{place.where}.{LAYOUTS}"),
    )


def _member(data: bytes, at: int, name: str, where: str) -> tuple[bytes, int]:
    """Content of the tar member that begins at a byte, and where the next one begins.

    Raises:
        MembersInvalid: no header there, of another name, or it reaches past the end.
    """
    try:
        info = tarfile.TarInfo.frombuf(data[at : at + TAR_BLOCK], "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError) as error:
        raise MembersInvalid(where, f"byte {at}: no tar header of {name} ({error})") from None
    begin = at + TAR_BLOCK
    if info.name != name or begin + info.size > len(data):
        raise MembersInvalid(where, f"byte {at}: {info.name} of {info.size} bytes, not a whole {name}")
    return data[begin : begin + info.size], begin + _padded(info.size)


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
    ranks, starts, lengths = layout.runs[np.argsort(layout.runs[:, 1], kind="stable")].astype(np.int64).T
    ends = np.cumsum(lengths)
    whole = (lengths > 0).all() and np.array_equal(starts, ends - lengths) and int(lengths.sum()) == seq_len
    held = np.bincount(ranks, weights=lengths) if whole and ranks.min() >= 0 else np.zeros(0)
    if held.tolist() != [seq_len // layout.ring_degree] * layout.ring_degree:
        raise LayoutNotPartition(f"{where}.{LAYOUTS}", f"{name} does not give every token to one rank, in equal slices")
    return layout


def _padded(size: int) -> int:
    return -(-size // TAR_BLOCK) * TAR_BLOCK


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
            content, _ = _member(data, stored.offset - first.offset, name, place.where)
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
