"""The header part of one pack's sample: its head, arrays and layouts, read as one range of its shard."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Int64

from preshard.packer_service.http.dataset.cache import size_of
from preshard.packer_service.http.dataset.reader import ServedDataset
from preshard.packer_service.http.problems import not_found
from preshard.packer_service.layout.area import area_by_rank
from preshard.packer_service.layout.mask import MaskIndex
from preshard.schemas.errors import LayoutsInvalid, PackRowInvalid
from preshard.schemas.header import SampleHead, decode_header
from preshard.schemas.layout import TokenLayout, check_partition, layout_name
from preshard.schemas.manifest import SHARDS
from preshard.schemas.members import sample_key
from preshard.schemas.sequence import PackedSequence

_LARGEST_HEADER = 1 << 30
"""Most bytes of a header part: it is read into memory, so a table with a wild size must not decide how many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplePlace:
    """Place of a pack in its shard."""

    pack_id: int
    key: str
    shard: str
    index_in_shard: int
    offset: int
    header_size: int
    head_crc32c: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class ServedSample:
    """A pack without its crops."""

    place: SamplePlace
    head: SampleHead
    sequence: PackedSequence
    layouts: dict[str, TokenLayout]
    index: MaskIndex

    @property
    def where(self) -> str:
        """The sample's name in errors."""
        return f"{SHARDS}/{self.place.shard}, sample {self.place.key}"

    @property
    def spans(self) -> Int64[np.ndarray, "docs 3"]:
        """Rows (number, start, length), one per document."""
        spans = [(number, span.start, span.length) for number, span in enumerate(self.head.documents)]
        return np.array(spans, np.int64).reshape(-1, 3)

    def document_areas(self) -> Int64[np.ndarray, "docs"]:
        """Allowed pairs of each document."""
        return area_by_rank(self.index, self.spans.astype(np.int32), len(self.head.documents))


def rows_of_crops(head: SampleHead) -> list[tuple[int, int]]:
    """The half-open range of pooled rows of each crop.

    Where the rows of a unit do not divide into equal parts of its crops, each crop has the range of the whole unit:
    some models pool over several crops.
    """
    ranges: list[tuple[int, int]] = []
    edges = zip(pairwise([0, *head.cum_image_bounds]), pairwise([0, *head.cum_token_pooling_bounds]), strict=True)
    for unit, ((first_crop, end_crop), (first, end)) in zip(head.units, edges, strict=True):
        crops = end_crop - first_crop
        divides = unit.grid[0] == crops and (end - first) % crops == 0
        each = (end - first) // crops
        ranges += [(first + i * each, first + (i + 1) * each) if divides else (first, end) for i in range(crops)]
    return ranges


def place_of(dataset: ServedDataset, pack_id: int) -> SamplePlace:
    """Place of a pack in its shard.

    Raises:
        ProblemError: 404 no such pack; 409 the table points outside the shard.
    """
    if not 0 <= pack_id < dataset.n_packs:
        raise not_found("pack", f"There is no pack {pack_id}; this dataset has the packs 0 to {dataset.n_packs - 1}.")
    offset, header, head_crc32c, size = (
        int(dataset.numbers("packs.parquet", name)[pack_id])
        for name in ("offset", "header_size", "head_crc32c", "size")
    )
    shard = dataset.shards[pack_id // dataset.config.packs_per_shard]
    with dataset.reading():
        if not (offset >= 0 and 0 < header <= size <= shard.bytes - offset and header <= _LARGEST_HEADER):
            raise PackRowInvalid("packs.parquet", f"pack {pack_id} lies outside its shard")
    return SamplePlace(
        pack_id=pack_id,
        key=sample_key(pack_id),
        shard=shard.name,
        index_in_shard=pack_id - shard.first_pack,
        offset=offset,
        header_size=header,
        head_crc32c=head_crc32c,
        size=size,
    )


def read_sample(dataset: ServedDataset, pack_id: int) -> ServedSample:
    """A pack's header part, kept while there is room.

    Raises:
        ProblemError: 404 no such pack; 409 its sample breaks the format.
    """
    place = place_of(dataset, pack_id)
    return dataset.kept(("sample", pack_id), lambda: _read(dataset, place), size_of)


def _read(dataset: ServedDataset, place: SamplePlace) -> ServedSample:
    data = dataset.read_range(place.shard, place.offset, place.header_size)
    where = f"{SHARDS}/{place.shard}, sample {place.key}"
    with dataset.reading():
        header = decode_header(
            data, place.pack_id, place.head_crc32c, dataset.config, axes=dataset.manifest.axes, where=where
        )
        return ServedSample(
            place=place,
            head=header.head,
            sequence=header.sequence,
            layouts=header.layouts,
            index=MaskIndex.of(header.sequence.mask),
        )


def stored_layout(dataset: ServedDataset, sample: ServedSample, layout: str, ring_degree: int) -> TokenLayout:
    """A layout that the configuration promises for a sample.

    Raises:
        ProblemError: 409 the sample lacks it, or it is not a partition of the pack.
    """
    with dataset.reading():
        found = sample.layouts.get(layout_name(layout, ring_degree))
        if found is None:
            raise LayoutsInvalid(sample.where, f"has no {layout_name(layout, ring_degree)}")
        check_partition(found, dataset.config.seq_len)
        return found
