"""A written shard agrees with itself: places, index, hash and the offsets in its heads."""

from __future__ import annotations

import hashlib
import io
import struct
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from preshard.packer_service.packs.crop import Crop
from preshard.packer_service.packs.sample import EncodedSample, encode_sample
from preshard.packer_service.shards.store import Folder
from preshard.packer_service.shards.write import WRITTEN_BYTES, write_shard
from preshard.schemas.encode import decode_index
from preshard.schemas.header import SampleHead, decode_head
from preshard.schemas.layout import TokenLayout
from preshard.schemas.members import crc32c, decode_layouts, decode_sequence
from preshard.schemas.sequence import SEQUENCE_DTYPES, PackedSequence


@dataclass(frozen=True, kw_only=True)
class Sample:
    """Contents of a sample."""

    head: SampleHead
    sequence: PackedSequence
    layouts: list[TokenLayout]
    crops: list[Crop]

    def encoded(self, image_format: str) -> EncodedSample:
        return encode_sample(self.head, self.sequence, self.layouts, self.crops, image_format)


def parts(samples: list[Sample], image_format: str) -> Iterator[list[bytes]]:
    for each in samples:
        encoded = each.encoded(image_format)
        yield [encoded.header, *encoded.crops]


def sample(pack_id: int, sizes: list[int]) -> Sample:
    """A sample of eight tokens with crops of the given sizes."""
    arrays = {name: np.arange(8).astype(dtype) + pack_id for name, dtype in SEQUENCE_DTYPES.items()}
    arrays["position_ids"] = arrays["position_ids"][None]
    layout = TokenLayout(
        scheme="contiguous",
        ring_degree=1,
        block_size=4,
        runs=np.array([[0, 0, 8]], np.int32),
        needs=np.ones((1, 2), np.bool_),
    )
    head = SampleHead(
        pack_id=pack_id,
        crc32c={},
        documents=[],
        units=[],
        cum_image_bounds=list(range(1, len(sizes) + 1)),
        cum_token_pooling_bounds=list(range(1, len(sizes) + 1)),
        image_shard_boundaries={},
        images=[],
    )
    crops = [
        Crop(doc_id="d", unit=i, width=1, height=1, timestamp=None, data=bytes([i]) * size)
        for i, size in enumerate(sizes)
    ]
    return Sample(head=head, sequence=PackedSequence(**arrays), layouts=[layout], crops=crops)


def members_of(data: bytes) -> list[tarfile.TarInfo]:
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        return tar.getmembers()


@pytest.fixture
def samples() -> list[Sample]:
    return [sample(7, [1, 511, 512, 513]), sample(8, []), sample(9, [0, 3000])]


def test_crops_of_any_size_are_written_once_and_in_order(tmp_path: Path) -> None:
    """Fails when crops are lost, doubled or moved where some are written together and others are longer than that."""
    given = sample(3, [WRITTEN_BYTES // 2, WRITTEN_BYTES // 2, 3 * WRITTEN_BYTES, 5, 0, 7])
    written = write_shard(Folder(str(tmp_path)), "s.tar", parts([given], "png"))
    data = (tmp_path / "s.tar").read_bytes()
    assert written.sha256 == hashlib.sha256(data).hexdigest()
    found = [data[member.offset_data :][: member.size] for member in members_of(data) if member.name.endswith(".png")]
    assert found == [crop.data for crop in given.crops]


def test_a_checksum_that_is_known_is_the_one_that_is_stored(tmp_path: Path, samples: list[Sample]) -> None:
    """Fails when crops of a packed dataset get another checksum than the same crops from the source."""
    anew = samples[0].encoded("jpeg")
    crops = [crop._replace(crc32c=crc32c(crop.data)) for crop in samples[0].crops]
    assert replace(samples[0], crops=crops).encoded("jpeg") == anew


def test_offsets_lead_to_what_they_name(tmp_path: Path, samples: list[Sample]) -> None:
    """Fails when padding to whole blocks is counted wrongly anywhere."""
    folder = Folder(str(tmp_path))
    written = write_shard(folder, "s.tar", parts(samples, "jpeg"))
    data = (tmp_path / "s.tar").read_bytes()
    assert written.size == len(data)
    assert written.sha256 == hashlib.sha256(data).hexdigest()
    starts = written.offsets
    assert decode_index((tmp_path / "s.tar.idx").read_bytes()).tolist() == [*starts, len(data) - 1024]
    members = members_of(data)
    assert [m.offset for m in members if m.name.endswith(".json")] == starts
    for given, start, size in zip(samples, starts, written.sizes, strict=True):
        inside = [m for m in members if start <= m.offset < start + size]
        head = decode_head(data[inside[0].offset_data :][: inside[0].size], "head")
        images_at = start + len(given.encoded("jpeg").header)
        assert len(head.images) == len(given.crops) == len(inside) - 3
        for stored, crop, member in zip(head.images, given.crops, inside[3:], strict=True):
            assert images_at + stored.offset == member.offset
            assert data[images_at + stored.offset + 512 :][: stored.size] == crop.data
        sequence = decode_sequence(data[inside[1].offset_data :][: inside[1].size], 8, "sequence", axes=1)
        np.testing.assert_array_equal(sequence.tokens, given.sequence.tokens)
        layouts = decode_layouts(data[inside[2].offset_data :][: inside[2].size], 8, 4, "layouts")
        np.testing.assert_array_equal(layouts["contiguous.ring1"].runs, [[0, 0, 8]])


def test_the_same_samples_give_the_same_bytes(tmp_path: Path, samples: list[Sample]) -> None:
    """Fails when a time, an owner or a random name gets into the tar."""
    first = write_shard(Folder(str(tmp_path / "a")), "s.tar", parts(samples, "png"))
    second = write_shard(Folder(str(tmp_path / "b")), "s.tar", parts(samples, "png"))
    assert first == second
    members = members_of((tmp_path / "a" / "s.tar").read_bytes())
    assert {(m.mtime, m.uid, m.gid, m.uname, m.gname) for m in members} == {(0, 0, 0, "", "")}
    assert members[3].name == "0000000007.0000.png"


def test_a_sample_that_fails_leaves_no_shard(tmp_path: Path, samples: list[Sample]) -> None:
    """Fails when a shard with some of its packs gets its final name."""

    def failing() -> Iterator[list[bytes]]:
        yield from parts(samples[:1], "jpeg")
        raise RuntimeError("decoder died")

    with pytest.raises(RuntimeError, match="decoder died"):
        write_shard(Folder(str(tmp_path)), "s.tar", failing())
    assert list(tmp_path.iterdir()) == []


def test_the_index_is_what_energon_writes(tmp_path: Path, samples: list[Sample]) -> None:
    """Fails when the index differs from Megatron Energon's ``prepare``, which must then write it again.

    It appends the offset of the first member of each name, and where tarfile stands after the last one.
    """
    write_shard(Folder(str(tmp_path)), "s.tar", parts(samples, "jpeg"))
    offsets, last = [], None
    with tarfile.open(tmp_path / "s.tar") as tar:
        for member in tar:
            if member.name.partition(".")[0] != last:
                offsets.append(member.offset)
            last = member.name.partition(".")[0]
        offsets.append(tar.offset)
    assert (tmp_path / "s.tar.idx").read_bytes() == b"".join(struct.pack("<Q", offset) for offset in offsets)


def test_checksums_are_those_of_the_members(tmp_path: Path, samples: list[Sample]) -> None:
    """Fails when a checksum covers other bytes than the member's content, or is another kind of CRC."""
    write_shard(Folder(str(tmp_path)), "s.tar", parts(samples, "jpeg"))
    assert crc32c(b"123456789") == 0xE3069283, "the check value of the polynomial"
    assert crc32c(bytes(32)) == 0x8A9136AA, "of RFC 3720, appendix B.4"
    with tarfile.open(tmp_path / "s.tar") as tar:
        content = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
    for given, key in zip(samples, ("0000000007", "0000000008", "0000000009"), strict=True):
        head = decode_head(content[f"{key}.json"], "head")
        assert given.encoded("jpeg").head_crc32c == crc32c(content[f"{key}.json"])
        assert head.crc32c == {name: crc32c(content[f"{key}.{name}"]) for name in ("sequence.npz", "layouts.npz")}
        assert [image.crc32c for image in head.images] == [
            crc32c(content[f"{key}.{i:04d}.jpg"]) for i in range(len(head.images))
        ]
