"""One dataset as one context-parallel rank reads it, pack by pack."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from PIL import Image
from torch import Tensor

from preshard.schemas.errors import ImagesInvalid, MembersInvalid, ReaderError
from preshard.schemas.header import SampleHead, StoredImage, most_pixels, read_member
from preshard.schemas.layout import rank_positions
from preshard.schemas.members import TAR_BLOCK, check_member, image_member
from preshard.schemas.sequence import IGNORE_INDEX, PackedSequence
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.files import DatasetFiles
from preshard.trainer.data.pack_index import PackPlace
from preshard.trainer.data.split import (
    crop_edges,
    held_units,
    padded_seq_edges,
    plan_split,
    pool_positions,
    read_header,
    token_layout,
)
from preshard.trainer.extras import load_extra


def read_crops(
    files: DatasetFiles, place: PackPlace, head: SampleHead, crops: range, *, image_format: str, most_pixels: int
) -> tuple[UInt8[np.ndarray, "bytes"], Int64[np.ndarray, "crops 2"]]:
    """Reads and decodes consecutive crops of a sample by one request, or by none if there is no crop.

    The range of bytes goes from the first crop's tar header to the last crop's last byte.

    Returns:
        The crops one after the other in a single buffer, as they need not be of one size; height and width of each.

    Raises:
        ImagesInvalid: a crop does not lie where the head says, or does not decode to RGB of its size.
        MemberChanged: a crop has other bytes than were written.
    """
    sizes = np.array([(head.images[crop].height, head.images[crop].width) for crop in crops], np.int64).reshape(-1, 2)
    pixels = sum(height * width for height, width in sizes.tolist())
    if pixels > most_pixels:
        what = f"crops {crops[0]} to {crops[-1]} have {pixels:,} pixels"
        raise ImagesInvalid(place.where, f"{what}; a pack of this dataset has at most {most_pixels:,}")
    ends = np.cumsum(3 * sizes.prod(axis=1))
    buffer = np.empty(int(ends[-1]) if len(crops) else 0, np.uint8)
    if not crops:
        return buffer, sizes
    first, last = head.images[crops[0]], head.images[crops[-1]]
    size = last.offset + TAR_BLOCK + last.size - first.offset
    begin = place.header_size + first.offset
    if size < TAR_BLOCK or begin + size > place.size:
        raise ImagesInvalid(place.where, f"crops {crops[0]} to {crops[-1]} lie at byte {begin}, outside the sample")
    data = files.read_range(place.shard, place.offset + begin, size)
    for i, crop in enumerate(crops):
        content, where = _content(data, first.offset, place, head.images[crop], crop, image_format)
        height, width = sizes[i].tolist()
        buffer[ends[i] - 3 * height * width : ends[i]] = _decode(content, height, width, where).reshape(-1)
    return buffer, sizes


def _content(
    data: bytes, begin: int, place: PackPlace, stored: StoredImage, crop: int, image_format: str
) -> tuple[bytes, str]:
    """A crop's bytes in a range that begins at ``begin``, and how errors name it."""
    name = image_member(place.key, crop, image_format)
    try:
        content, _ = read_member(data, stored.offset - begin, name, place.where)
    except MembersInvalid as error:
        raise ImagesInvalid(place.where, f"crop {crop}: {error.detail}") from None
    if len(content) != stored.size:
        raise ImagesInvalid(place.where, f"crop {crop}: {name} has {len(content)} bytes, not {stored.size}")
    where = f"{place.where}, {name}"
    check_member(content, stored.crc32c, where)
    return content, where


def _decode(content: bytes, height: int, width: int, where: str) -> UInt8[np.ndarray, "height width 3"]:
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            if image.size != (width, height):
                raise ImagesInvalid(where, f"is of {image.size[0]} x {image.size[1]}, not of {width} x {height}")
            pixels = np.asarray(image)
    except ImagesInvalid:
        raise
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImagesInvalid(where, f"does not decode ({error})") from None
    if pixels.shape != (height, width, 3) or pixels.dtype != np.uint8:
        raise ImagesInvalid(where, f"decodes to {pixels.dtype}{pixels.shape}, not RGB of {width} x {height}")
    return pixels


LOCAL = ("tokens", "labels", "position_ids", "pool_ids")
"""Arrays of which a rank gets its slice, as int64, the dtype that torch indexes with."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPart:
    """The part of a pack that a rank reads: ``cp_rank`` of ``ulysses_degree * ring_degree``, under a scheme."""

    scheme: str
    ulysses_degree: int
    ring_degree: int
    cp_rank: int


class PackReader:
    """Reads a rank's part of any pack of a dataset.

    Args:
        files: the dataset's, or packs in memory in place of them.
        part: what this rank reads of a pack.

    Raises:
        ReaderError: there is no such rank, or the dataset neither has the layout nor lets it be derived.
        FormatError: ``packs.parquet`` is missing or breaks the format.
    """

    def __init__(self, files: DatasetFiles, part: RankPart) -> None:
        self.files, self.config = files, files.config
        self.split = plan_split(
            self.config, layout=part.scheme, ring_degree=part.ring_degree, ulysses_degree=part.ulysses_degree
        )
        check_rank("cp_rank", part.cp_rank, "ulysses_degree * ring_degree", self.split.cp_size)
        self.packs = self.files.packs()
        self._part = part
        self._most_pixels = most_pixels(self.config, self.files.manifest.model)

    def read(self, pack_id: int, *, dataset: int, step: int, state: dict[str, Any]) -> RankBatch:
        """The rank's part of a pack. ``dataset``, ``step`` and ``state`` become fields of the batch.

        Raises:
            FormatError: the sample's bytes break the format.
        """
        read = partial(self._read, dataset=dataset, step=step, state=state)
        if self.files.store is None:
            return read(self.files, self.packs[pack_id])
        batch: RankBatch = self.files.store.read_pack(self.packs, pack_id, read, whole=self.split.cp_size == 1)
        return batch

    def _read(self, files: DatasetFiles, place: PackPlace, **given: Any) -> RankBatch:
        before, part, manifest = files.bytes_read, self._part, self.files.manifest
        header = read_header(files, place, self.config, manifest.axes)
        layout = token_layout(header, self.split, self.config, place.where)
        edges = crop_edges(header.head, self.split, place.where, shares_crops=manifest.shares_crops)
        pixels, picture_sizes = read_crops(
            files,
            place,
            header.head,
            range(int(edges.crops[part.cp_rank]), int(edges.crops[part.cp_rank + 1])),
            image_format=self.config.image_format,
            most_pixels=self._most_pixels,
        )
        units, unit_edges = held_units(header.head, edges, part.cp_rank)
        positions = rank_positions(
            layout.runs,
            ring_rank=part.cp_rank // part.ulysses_degree,
            ulysses_degree=part.ulysses_degree,
            ulysses_rank=part.cp_rank % part.ulysses_degree,
        )
        sequences = load_extra("sequences").find_sequences(header.sequence.mask)
        return RankBatch(
            pack_id=place.pack_id,
            key=place.key,
            **given,
            **_local(header.sequence, torch.from_numpy(positions)),
            doc_ids=torch.from_numpy(header.sequence.doc_ids),
            branch_ids=torch.from_numpy(header.sequence.branch_ids),
            group_ids=torch.from_numpy(header.sequence.group_ids),
            layout=layout,
            pixels=torch.from_numpy(pixels),
            picture_sizes=torch.from_numpy(picture_sizes),
            crop_side=self.config.vision.image_size if manifest.model is None else None,
            documents=tuple(header.head.documents),
            units=units,
            unit_edges=torch.from_numpy(unit_edges),
            model=manifest.model,
            image_edges=torch.from_numpy(edges.crops),
            pool_edges=torch.from_numpy(edges.pooled),
            pool_positions=torch.from_numpy(pool_positions(header.sequence, int(edges.pooled[-1]), place.where)),
            total_loss_weight=float(header.sequence.loss_weights.sum(dtype=np.float64)),
            sequence_edges=torch.from_numpy(sequences.edges),
            longest_sequence=sequences.longest,
            padded_seq_edges=torch.from_numpy(padded_seq_edges(header.head, self.config.seq_len, place.where)),
            not_causal=sequences.not_causal,
            cp_rank=part.cp_rank,
            bytes_read=files.bytes_read - before,
        )


def check_rank(name: str, rank: int, size_name: str, size: int) -> None:
    """
    Raises:
        ReaderError: there is no such rank.
    """
    if not 0 <= rank < size:
        raise ReaderError(f"{name} is {rank}; with {size_name} {size} it must be at least 0 and below {size}")


def _local(sequence: PackedSequence, positions: Int64[Tensor, "local"]) -> dict[str, Any]:
    local = {name: torch.from_numpy(getattr(sequence, name))[..., positions].long() for name in LOCAL}
    loss_tokens = torch.nonzero(local["labels"] != IGNORE_INDEX)[:, 0]
    loss_weights = torch.from_numpy(sequence.loss_weights)[positions]
    columns = {name: torch.from_numpy(values)[positions] for name, values in sequence.columns.items()}
    own = {"loss_weights": loss_weights, "loss_tokens": loss_tokens, "positions": positions, "columns": columns}
    return {**local, **own}
