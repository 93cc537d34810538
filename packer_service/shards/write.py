"""Writes samples into one tar file: offsets and the hash come from the very bytes that are written."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from packer_service.packs.crop import Crop
from packer_service.shards.store import Folder, Sink
from schemas.codec import (
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
)
from schemas.layout import TokenLayout
from schemas.manifest import SampleHead, StoredImage
from schemas.sequence import PackedSequence


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """A pack ready to be written. ``head.images`` is empty: the writer fills it in with the crops' places."""

    head: SampleHead
    sequence: PackedSequence
    layouts: list[TokenLayout]
    crops: list[Crop]


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplePlace:
    """Where a sample lies in its tar, in bytes: see ``schemas.tables.PACKS``."""

    offset: int
    header_size: int
    size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenShard:
    """A shard that is whole, synced and under its final name."""

    size: int
    sha256: str
    places: list[SamplePlace]


def write_shard(folder: Folder, name: str, samples: Iterable[Sample], image_format: str) -> WrittenShard:
    """Writes ``NAME`` and ``NAME.idx`` into a folder, one sample in memory at a time.

    The index appears before the tar: a tar under its final name is never without one.
    """
    places: list[SamplePlace] = []
    with folder.writer(name) as sink:
        tar = _CountingSink(sink)
        for sample in samples:
            header, images = encode_sample(sample, image_format)
            places.append(SamplePlace(offset=tar.size, header_size=len(header), size=len(header) + len(images)))
            tar.write(header)
            tar.write(images)
        tar.write(TAR_END)
        offsets = np.array([*(place.offset for place in places), tar.size], np.uint64)
        folder.write(f"{name}.idx", encode_index(offsets))
    return WrittenShard(size=tar.size, sha256=tar.hash.hexdigest(), places=places)


def encode_sample(sample: Sample, image_format: str) -> tuple[bytes, bytes]:
    """A sample's members as tar bytes: the header part (head, sequence, layouts), and the crops."""
    key = sample_key(sample.head.pack_id)
    stored, parts, offset = [], [], 0
    for number, crop in enumerate(sample.crops):
        parts.append(tar_member(image_member(key, number, image_format), crop.data))
        stored.append(
            StoredImage(
                doc_id=crop.doc_id,
                unit=crop.unit,
                width=crop.width,
                height=crop.height,
                timestamp=crop.timestamp,
                offset=offset,
                size=len(crop.data),
            )
        )
        offset += len(parts[-1])
    head = sample.head.model_copy(update={"images": stored})
    members = {HEAD: encode_json(head), SEQUENCE: encode_sequence(sample.sequence)}
    members[LAYOUTS] = encode_layouts(sample.layouts)
    header = b"".join(tar_member(f"{key}.{extension}", data) for extension, data in members.items())
    return header, b"".join(parts)


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
