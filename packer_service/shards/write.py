"""Writes samples into one tar file: offsets and the hash come from the very bytes that are written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from pydantic import TypeAdapter

from preshard.packer_service.packs.crop import Crop
from preshard.packer_service.shards.store import Folder, Sink
from preshard.schemas.checksum import crc32c
from preshard.schemas.codec import (
    HEAD,
    LAYOUTS,
    SEQUENCE,
    TAR_END,
    encode_index,
    encode_json,
    encode_layouts,
    encode_sequence,
    image_member,
    sample_key,
    tar_member,
    tar_parts,
)
from preshard.schemas.layout import TokenLayout
from preshard.schemas.manifest import SampleHead, StoredImage
from preshard.schemas.sequence import PackedSequence

WRITTEN_BYTES = 1 << 18
"""Bytes that are joined, hashed and written together, so many that they are in the processor's cache all the while."""

_IMAGES = TypeAdapter(list[StoredImage])
"""Makes the rows of all crops of a pack in half of the time that one after the other takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A pack ready to be written. The writer fills in ``head.images``, the crops' places, and ``head.crc32c``.

    ``encoded`` has members, by their extensions, that are known as bytes already.
    """

    head: SampleHead
    sequence: PackedSequence
    layouts: list[TokenLayout]
    crops: list[Crop]
    encoded: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplePlace:
    """Where a sample lies in its tar, in bytes, and its head's checksum: see ``preshard.schemas.tables.PACKS``."""

    offset: int
    header_size: int
    head_crc32c: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenShard:
    """A shard that is whole, synced and under its final name."""

    size: int
    sha256: str
    places: list[SamplePlace]


def write_shard(folder: Folder, name: str, samples: Iterable[Sample], image_format: str) -> WrittenShard:
    """Writes ``NAME`` and ``NAME.idx`` into a folder, one sample in memory at a time.

    The index appears before the tar: a tar under its final name is never without one. It is what Megatron Energon's
    ``prepare`` writes for the tar: the last offset is where the last sample ends, before the two zero blocks.
    """
    places: list[SamplePlace] = []
    with folder.writer(name) as sink:
        tar = _CountingSink(sink)
        for sample in samples:
            encoded = encode_sample(sample, image_format)
            places.append(encoded.place(tar.size))
            for part in _joined([encoded.header, *encoded.crops]):
                tar.write(part)
            del sample, encoded  # the next pack's crops are decoded now
        offsets = np.array([*(place.offset for place in places), tar.size], np.uint64)
        tar.write(TAR_END)
        folder.write(f"{name}.idx", encode_index(offsets))
    return WrittenShard(size=tar.size, sha256=tar.hash.hexdigest(), places=places)


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedSample:
    """A sample's members as tar bytes: the header part (head, sequence, layouts), and the crops one after the other."""

    header: bytes
    crops: Sequence[bytes]
    head_crc32c: int

    def place(self, offset: int) -> SamplePlace:
        """Where it lies when it begins at this byte."""
        size = len(self.header) + sum(map(len, self.crops))
        return SamplePlace(offset=offset, header_size=len(self.header), head_crc32c=self.head_crc32c, size=size)


def encode_sample(sample: Sample, image_format: str) -> EncodedSample:
    """Encodes a sample's members, with the places and checksums that follow from them."""
    key = sample_key(sample.head.pack_id)
    images, parts, offset = list[dict[str, object]](), list[bytes](), 0
    for number, crop in enumerate(sample.crops):
        member = tar_parts(image_member(key, number, image_format), crop.data)
        parts += member
        images.append(
            {
                "doc_id": crop.doc_id,
                "unit": crop.unit,
                "width": crop.width,
                "height": crop.height,
                "timestamp": crop.timestamp,
                "offset": offset,
                "size": len(crop.data),
                "crc32c": crc32c(crop.data) if crop.crc32c is None else crop.crc32c,
            }
        )
        offset += sum(map(len, member))
    arrays = {
        SEQUENCE: sample.encoded.get(SEQUENCE) or encode_sequence(sample.sequence),
        LAYOUTS: sample.encoded.get(LAYOUTS) or encode_layouts(sample.layouts),
    }
    checksums = {extension: crc32c(data) for extension, data in arrays.items()}
    head = encode_json(sample.head.model_copy(update={"images": _IMAGES.validate_python(images), "crc32c": checksums}))
    members = {HEAD: head, **arrays}
    header = b"".join(tar_member(f"{key}.{extension}", data) for extension, data in members.items())
    return EncodedSample(header=header, crops=parts, head_crc32c=crc32c(head))


def _joined(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of :data:`WRITTEN_BYTES` at least, but for the last."""
    waiting, size = list[bytes](), 0
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= WRITTEN_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)


class _CountingSink:
    """Counts and hashes what goes through."""

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.size = 0
        self.hash = hashlib.sha256()

    def write(self, data: bytes) -> None:
        self.sink.write(data)
        self.size += len(data)
        self.hash.update(data)
