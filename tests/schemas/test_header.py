"""The one reader of a sample's header part."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from preshard.schemas.config import PackConfig
from preshard.schemas.encode import tar_member
from preshard.schemas.errors import (
    FormatError,
    LayoutsInvalid,
    MemberChanged,
    MembersInvalid,
    PackRowInvalid,
    SampleHeadInvalid,
    SequenceInvalid,
)
from preshard.schemas.header import DocumentSpan, decode_header, most_pixels, read_member
from preshard.schemas.members import HEADER_MEMBERS, crc32c, sample_key


@pytest.fixture(scope="module")
def row(tiny_dataset: Path) -> dict[str, Any]:
    """The row of pack 1."""
    return pq.read_table(tiny_dataset / "packs.parquet").slice(1, 1).to_pylist()[0]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def header(tiny_dataset: Path, row: dict[str, Any]) -> bytes:
    shard = (tiny_dataset / "shards" / row["shard"]).read_bytes()
    return shard[row["offset"] : row["offset"] + row["header_size"]]


def test_a_header_part_is_read_whole(header: bytes, row: dict[str, Any], tiny_config: PackConfig) -> None:
    """Fails when a member is left out, or a layout does not know its block size."""
    found = decode_header(header, 1, row["head_crc32c"], tiny_config, axes=1, where="here")
    assert found.head.pack_id == 1
    assert found.sequence.seq_len == tiny_config.seq_len
    assert len(found.layouts) == len(tiny_config.layouts) * len(tiny_config.ring_degrees)
    assert {layout.block_size for layout in found.layouts.values()} == {tiny_config.block_size}


def test_every_cut_of_a_header_part_is_told(header: bytes, row: dict[str, Any], tiny_config: PackConfig) -> None:
    """Fails when a range that ends early, even by the padding of its last member alone, is read as if it were whole."""
    cuts = {*range(0, len(header), 512), *range(len(header) - 600, len(header))}
    for size in sorted(cuts):
        with pytest.raises(FormatError, match=r"^here"):
            decode_header(header[:size], 1, row["head_crc32c"], tiny_config, axes=1, where="here")
    with pytest.raises(MembersInvalid, match=f"ends after {len(header)} bytes, not {len(header) + 512}"):
        decode_header(header + bytes(512), 1, row["head_crc32c"], tiny_config, axes=1, where="here")


def test_another_packs_header_part_is_told(header: bytes, row: dict[str, Any], tiny_config: PackConfig) -> None:
    """Fails when a rank trains on another pack than the table says, under either name."""
    with pytest.raises(MembersInvalid, match=r"not a whole 0000000002\.json"):
        decode_header(header, 2, row["head_crc32c"], tiny_config, axes=1, where="here")
    members, at = [], 0
    for extension in HEADER_MEMBERS:
        content, at = read_member(header, at, f"{sample_key(1)}.{extension}", "here")
        members.append((extension, content))
    renamed = b"".join(tar_member(f"{sample_key(2)}.{extension}", content) for extension, content in members)
    with pytest.raises(PackRowInvalid, match="holds pack 1, not 2"):
        decode_header(renamed, 2, row["head_crc32c"], tiny_config, axes=1, where="here")
    head = json.loads(members[0][1])
    assert head["pack_id"] == 1


def test_a_header_part_of_another_configuration_is_told(
    header: bytes, row: dict[str, Any], tiny_config: PackConfig
) -> None:
    """Fails when arrays of another length or needs of another block size are taken as they are."""
    twice = tiny_config.model_copy(update={"seq_len": 2 * tiny_config.seq_len})
    with pytest.raises(SequenceInvalid):
        decode_header(header, 1, row["head_crc32c"], twice, axes=1, where="here")
    coarse = tiny_config.model_copy(update={"block_size": 2 * tiny_config.block_size})
    with pytest.raises(LayoutsInvalid, match=r"needs is bool"):
        decode_header(header, 1, row["head_crc32c"], coarse, axes=1, where="here")


def test_a_damaged_member_of_a_header_part_is_named(
    header: bytes, row: dict[str, Any], tiny_config: PackConfig
) -> None:
    """Fails when flipped bits that still decode are trained on, or the error does not say in which member they are."""
    at = 0
    for extension in HEADER_MEMBERS:
        name = f"{sample_key(1)}.{extension}"
        content, following = read_member(header, at, name, "here")
        place = at + 512 + len(content) // 2
        damaged = header[:place] + bytes([header[place] ^ 1]) + header[place + 1 :]
        with pytest.raises(MemberChanged, match=rf"here\.{extension}: has the CRC-32C \d+, not \d+"):
            decode_header(damaged, 1, row["head_crc32c"], tiny_config, axes=1, where="here")
        at = following


def test_a_span_leaves_out_what_few_documents_have() -> None:
    """Fails when every rank reads ``columns`` and ``preference`` of every document, though no dataset here has them."""
    plain = {
        **dict.fromkeys(("doc_id", "source"), "a"), **dict.fromkeys(("label_cut", "medium_cut"), False),
        **dict.fromkeys(("piece", "copy_number", "epoch", "start", "length", "aligned_length"), 1),
        **dict.fromkeys(("n_units", "n_images", "n_patches", "load"), 0),
    }  # fmt: skip
    assert DocumentSpan.model_validate(plain).model_dump() == plain
    more = plain | {"columns": {"quality": 0.5}, "preference": True}
    assert DocumentSpan.model_validate(more).model_dump() == more


def test_rows_of_units_are_those_that_are_pooled(header: bytes, row: dict[str, Any], tiny_config: PackConfig) -> None:
    """Fails when memory for features follows from a forged number of rows."""
    members, at = {}, 0
    for extension in HEADER_MEMBERS:
        members[extension], at = read_member(header, at, f"{sample_key(1)}.{extension}", "pack")
    head = json.loads(members["json"])
    head["units"][0]["rows"] = 10**12
    members["json"] = json.dumps(head).encode()
    forged = b"".join(tar_member(f"{sample_key(1)}.{name}", data) for name, data in members.items())
    with pytest.raises(SampleHeadInvalid, match="rows of units differ from cum_token_pooling_bounds"):
        decode_header(forged, 1, crc32c(members["json"]), tiny_config, axes=1, where="pack")


@pytest.mark.parametrize(("max_images", "crops"), [(None, 1024), (5, 5), (5000, 1024)])
def test_pixels_are_bounded_by_crops(max_images: int | None, crops: int) -> None:
    """Fails when a header may announce more crops than a pack can hold."""
    config = PackConfig(seq_len=1024, max_images=max_images)
    assert most_pixels(config, None) == crops * config.vision.image_size**2
