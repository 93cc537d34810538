"""A corrupt dataset for every rule of the shards: the tar, its index, its members, and its rows of packs.parquet."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable
from typing import Any

import pytest
from changed_places import add, put

from preshard.schemas.encode import tar_member
from preshard.schemas.errors import FORMAT_RULES

breaks = pytest.mark.breaks


def test_a_broken_rule_is_named(
    rule: str, also: tuple[str, ...], corrupt: Callable[[Any], None], editable: Any, assert_breaks: Callable[..., Any]
) -> None:
    """Fails when a fault of a shard is not found, is named as another, or hides behind others."""
    corrupt(editable)
    verdict = assert_breaks(editable, rule, *also)
    # Whatever is wrong with the first shard, the others are read.
    assert verdict.checked["shards"] >= len(editable.manifest["shards"]) - 1 > 1


def test_every_rule_of_the_shards_has_a_case(corrupt_rules: set[str]) -> None:
    """Fails when a rule is added without a corrupt dataset that raises it."""
    assert corrupt_rules == {rule for rule in FORMAT_RULES if rule.startswith("S")}


@breaks("S2")
def manifest_with_another_hash(data: Any) -> None:
    data.manifest["shards"][0]["sha256"] = "0123456789abcdef" * 4
    data.seal()


@breaks("S2", "S7", "P16")
def flipped_byte_in_a_picture(data: Any) -> None:
    number = next(i for i, shard in enumerate(data.shards) if shard[0].crops)
    tar = bytearray(data.shard_file(number).read_bytes())
    row = data.tables["packs.parquet"][data.manifest["shards"][number]["first_pack"]]
    size = int(bytes(tar[row["offset"] + row["header_size"] + 124 :][:11]), 8)  # of the first crop, from its tar header
    tar[row["offset"] + row["header_size"] + 512 + size - 20] ^= 4
    data.shard_file(number).write_bytes(tar)


@breaks("S2", "S7", "P2")
def flipped_byte_in_the_arrays(data: Any) -> None:
    tar = bytearray(data.shard_file().read_bytes())
    at = tar.index(b"0000000000.sequence.npz")
    tar[at + 2000] ^= 4
    data.shard_file().write_bytes(tar)


@breaks("S2", "S3")
def truncated_shard(data: Any) -> None:
    tar = data.shard_file().read_bytes()
    data.shard_file().write_bytes(tar[: len(tar) // 2 + 100])


@breaks("S3")
def truncated_shard_with_its_new_hash(data: Any) -> None:
    tar = data.shard_file().read_bytes()
    data.write_shard_bytes(0, tar[: len(tar) // 2 + 100], data.offsets(0))
    data.seal()


@breaks("S3")
def tar_without_its_end(data: Any) -> None:
    data.write_shard_bytes(0, data.shard_file().read_bytes()[:-1024], data.offsets(0))
    data.seal()


@breaks("S3")
def tar_that_goes_on_after_its_end(data: Any) -> None:
    data.write_shard_bytes(0, data.shard_file().read_bytes() + bytes(512), data.offsets(0))
    data.seal()


@breaks("S3")
def compressed_tar(data: Any) -> None:
    data.write_shard_bytes(0, gzip.compress(data.shard_file().read_bytes(), mtime=0), data.offsets(0))
    data.seal()


@breaks("S3")
def member_with_a_time(data: Any) -> None:
    tar = bytearray(data.shard_file().read_bytes())
    info = tarfile.TarInfo.frombuf(bytes(tar[:512]), "utf-8", "strict")
    info.mtime = 1
    tar[:512] = info.tobuf(format=tarfile.USTAR_FORMAT)
    data.write_shard_bytes(0, bytes(tar), data.offsets(0))
    data.seal()


@breaks("S3")
def member_not_filled_up_with_zeros(data: Any) -> None:
    tar = bytearray(data.shard_file().read_bytes())
    second = data.offsets(0)[1]
    tar[second - 1] ^= 1
    data.write_shard_bytes(0, bytes(tar), data.offsets(0))
    data.seal()


def test_reading_goes_on_after_a_broken_header(editable: Any, assert_breaks: Any) -> None:
    """Fails when one flipped byte in a header hides the samples after it."""
    editable.sample_where(lambda s: s.head["pack_id"] == 1).sequence["position_ids"][0, 3] += 1
    editable.save()
    tar = bytearray(editable.shard_file().read_bytes())
    tar[100] ^= 1
    editable.write_shard_bytes(0, bytes(tar), editable.offsets(0))
    editable.seal()
    verdict = assert_breaks(editable, "S3", "P6")
    assert {(fault.rule, fault.sample) for fault in verdict.broken} == {("S3", None), ("P6", "0000000001")}


@breaks("S4")
def index_off_by_one(data: Any) -> None:
    data.write_shard_bytes(0, data.shard_file().read_bytes(), [0, data.offsets(0)[1] + 1])
    data.seal()


@breaks("S4")
def index_off_by_one_block(data: Any) -> None:
    data.write_shard_bytes(0, data.shard_file().read_bytes(), [0, data.offsets(0)[1] + 512])
    data.seal()


@breaks("S4")
def index_without_the_end(data: Any) -> None:
    path = data.shard_file().with_suffix(".tar.idx")
    path.write_bytes(path.read_bytes()[:-8])


@breaks("S4")
def index_that_ends_with_the_tar(data: Any) -> None:
    """Other readers stop before the zero blocks, and this index does, too."""
    path = data.shard_file().with_suffix(".tar.idx")
    size = data.shard_file().stat().st_size
    path.write_bytes(path.read_bytes()[:-8] + size.to_bytes(8, "little"))


@breaks("S4")
def index_of_no_whole_offsets(data: Any) -> None:
    path = data.shard_file().with_suffix(".tar.idx")
    path.write_bytes(path.read_bytes()[:-1])


@breaks("S5")
def crop_under_another_number(data: Any) -> None:
    sample = data.sample_where(lambda s: len(s.names) > 1)
    sample.names[-1] = f"{sample.key}.0999.jpg"
    data.save()


@breaks("S5")
def crop_under_another_extension(data: Any) -> None:
    sample = data.sample_where(lambda s: len(s.names) > 1)
    sample.names[0] = f"{sample.key}.0000.png"
    data.save()


@breaks("S5")
def missing_crop_and_its_number(data: Any) -> None:
    sample = data.sample_where(lambda s: len(s.names) > 1)
    del sample.names[0], sample.crops[0]
    data.save()


@breaks("S5")
def arrays_before_the_head(data: Any) -> None:
    tar, second = data.shard_file().read_bytes(), data.offsets(0)[1]
    head_end = tar.index(b"0000000000.sequence.npz")
    layouts = tar.index(b"0000000000.layouts.npz")
    moved = tar[head_end:layouts] + tar[:head_end] + tar[layouts:]
    data.write_shard_bytes(0, moved, [0, second])
    data.seal()


@breaks("S5")
def missing_sample(data: Any) -> None:
    data.write_shard_bytes(0, data.shard_file().read_bytes()[: data.offsets(0)[1]] + bytes(1024), [0])
    data.seal()


@breaks("S5")
def sample_twice(data: Any) -> None:
    tar, second = data.shard_file().read_bytes(), data.offsets(0)[1]
    again = tar[:-1024] + tar[:second]
    data.write_shard_bytes(0, again + bytes(1024), [0, second, len(tar) - 1024])
    data.seal()


@breaks("S5")
def sample_of_nobody(data: Any) -> None:
    tar = data.shard_file().read_bytes()[:-1024]
    more = tar + tar_member("notes.txt", b"mine")
    data.write_shard_bytes(0, more + bytes(1024), [*data.offsets(0), len(tar)])
    data.seal()


@breaks("S6")
def place_that_is_off_by_a_block(data: Any) -> None:
    data.tables["packs.parquet"][1]["offset"] += 512
    data.save(places=False)


@breaks("S6")
def cost_that_is_not_that_of_the_pack(data: Any) -> None:
    data.tables["packs.parquet"][2]["cost"] *= 1.0000001
    data.save()


def _unrepaired(sample: Any) -> Any:
    """The sample with its checksums as they are, to be changed."""
    sample.members(sample.key)
    sample.repaired = False
    return sample


@breaks("S7")
def picture_with_another_checksum(data: Any) -> None:
    _unrepaired(data.sample_where(lambda s: s.crops)).head["images"][0]["crc32c"] ^= 1
    data.save()


@breaks("S7")
def arrays_with_another_checksum(data: Any) -> None:
    _unrepaired(data.samples()[0]).head["crc32c"]["layouts.npz"] ^= 1
    data.save()


@breaks("S7")
def head_with_another_checksum(data: Any) -> None:
    data.save()
    data.tables["packs.parquet"][1]["head_crc32c"] ^= 1
    data.save(places=False)


CASES = [
    ("S1", "missing shard", lambda data: data.shard_file().unlink()),
    ("S1", "missing index", lambda data: data.shard_file().with_suffix(".tar.idx").unlink()),
]


SAVED = [
    ("S6", "key of another pack", lambda data: put(data.tables["packs.parquet"][0], "key", "0000000009")),
    ("S6", "area that is not that of the mask", lambda data: add(data.tables["packs.parquet"][2], "attention_area", 1)),
]
