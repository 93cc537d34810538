"""Members to bytes and back; bytes that are not what they should be are named, never half-read."""

from __future__ import annotations

import io
import json
import pickle
import tarfile

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

from preshard.schemas.dataset.read_manifest import decode_manifest
from preshard.schemas.encode import TAR_END, decode_index, encode_index, tar_header, tar_member
from preshard.schemas.errors import (
    FORMAT_RULES,
    ColumnsInvalid,
    DocumentError,
    LayoutsInvalid,
    ManifestInvalid,
    SampleHeadInvalid,
    SequenceInvalid,
)
from preshard.schemas.files.npz_write import encode_arrays
from preshard.schemas.header import StoredImage, decode_head
from preshard.schemas.members import decode_layouts, decode_sequence, sample_key
from preshard.schemas.sequence import SEQUENCE_DTYPES


def arrays(**changed: np.ndarray | None) -> bytes:
    good = {name: np.zeros(4, dtype) for name, dtype in SEQUENCE_DTYPES.items()}
    good["position_ids"] = good["position_ids"][None]
    return encode_arrays({name: array for name, array in (good | changed).items() if array is not None})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is not an .npz"),
        (b"PK" + bytes(50), "is not an .npz"),
        (arrays()[:-40], "is not an .npz"),
        (arrays(labels=None), "holds the arrays"),
        (arrays(tokens=None), "holds the arrays"),
        (encode_arrays({}), "holds the arrays"),
        (arrays(labels=np.zeros(4, np.int64)), r"labels is int64\(4,\), not int32\(4,\)"),
        (arrays(tokens=np.zeros(5, np.int32)), r"tokens is int32\(5,\)"),
        (arrays(position_ids=np.zeros((3, 4), np.int32)), r"position_ids is int32\(3, 4\), not int32\(1, 4\)"),
    ],
)
def test_wrong_sequences_are_named(data: bytes, message: str) -> None:
    """Fails when an array of another type or length is taken as it is."""
    with pytest.raises(ColumnsInvalid, match=r"holds the columns \['more'\], not \[\]"):
        decode_sequence(arrays(more=np.zeros(4)), 4, "x", axes=1)
    with pytest.raises(SequenceInvalid, match=message):
        decode_sequence(data, 4, "x", axes=1)
    assert decode_sequence(arrays(), 4, "x", axes=1).seq_len == 4


RUNS, NEEDS = np.zeros((1, 3), np.int32), np.zeros((2, 4), np.bool_)


@pytest.mark.parametrize(
    "given",
    [
        {"zigzag.ring2": RUNS},
        {"zigzag": RUNS, "zigzag.needs": NEEDS},
        {"zigzag.ring02": RUNS, "zigzag.ring02.needs": NEEDS},
        {"zigzag.ring2": RUNS.astype(np.int64), "zigzag.ring2.needs": NEEDS},
        {"zigzag.ring2": np.zeros((1, 4), np.int32), "zigzag.ring2.needs": NEEDS},
        {"zigzag.ring2": np.zeros((1, 2), np.int32), "zigzag.ring2.needs": NEEDS},
        {"zigzag.ring2": RUNS, "zigzag.ring2.needs": NEEDS.astype(np.int8)},
        {"zigzag.ring2": RUNS, "zigzag.ring2.needs": np.zeros((2, 4), "datetime64[s]")},
        {"zigzag.ring4": RUNS, "zigzag.ring4.needs": NEEDS},
        {"zigzag.ring2": RUNS, "zigzag.ring2.needs": NEEDS, "other.ring2.needs": NEEDS},
    ],
)
def test_wrong_layouts_are_named(given: dict[str, np.ndarray]) -> None:
    """Fails when a layout without its needs, or of another type, is taken as it is."""
    with pytest.raises(LayoutsInvalid):
        decode_layouts(encode_arrays(given), 16, 4, "x")
    good = decode_layouts(encode_arrays({"zigzag.ring2": RUNS, "zigzag.ring2.needs": NEEDS}), 16, 4, "x")
    assert good["zigzag.ring2"].ring_degree == 2
    assert good["zigzag.ring2"].block_size == 4


def test_needs_of_another_block_size_are_named() -> None:
    """Fails when layouts are read with a block size that is not theirs: ranks would fetch other keys than they see."""
    stored = encode_arrays({"zigzag.ring2": RUNS, "zigzag.ring2.needs": NEEDS})
    for block_size, blocks in ((2, 8), (3, 6), (8, 2), (16, 1)):
        with pytest.raises(LayoutsInvalid, match=rf"needs is bool\(2, 4\), not bool\(2, {blocks}\)"):
            decode_layouts(stored, 16, block_size, "x")


def test_records_with_other_fields_are_named() -> None:
    """Fails when a missing or unknown field is passed over."""
    with pytest.raises(SampleHeadInvalid, match="pack_id"):
        decode_head(b"{}", "x")
    with pytest.raises(SampleHeadInvalid):
        decode_head(b"\xff", "x")
    with pytest.raises(ManifestInvalid, match=r"format_version is 99; this version of preshard reads 3$"):
        decode_manifest(b'{"format_version": 99}', "x")
    for data in (b"", b"[]", b"{}", b'{"format_version": 1}', b'{"format_version": 2}'):
        with pytest.raises(ManifestInvalid):
            decode_manifest(data, "x")


@pytest.mark.parametrize("version", [1, 2])
def test_an_earlier_format_is_refused_by_its_number(version: int) -> None:
    """Fails when a dataset of an earlier format is read, or its user is left without a remedy."""
    with pytest.raises(ManifestInvalid) as refused:
        decode_manifest(json.dumps({"format_version": version}).encode(), "manifest.json")
    assert str(refused.value) == (
        f"manifest.json: format_version is {version}; this version of preshard reads 3; pack its sources again: "
        "preshard pack SOURCE --out NEW_DATASET"
    )


def test_indices() -> None:
    """Fails when an index of another size is read."""
    offsets = np.array([0, 2**40], np.uint64)
    assert decode_index(encode_index(offsets)).tolist() == [0, 2**40]
    for data in (b"", b"1234567"):
        with pytest.raises(ValueError, match="not a positive multiple of 8"):
            decode_index(data)


def test_keys_sort_as_packs_do_and_have_no_dot() -> None:
    """Fails when WebDataset would cut a key at a dot, or list packs out of order."""
    keys = [sample_key(pack) for pack in (0, 9, 10, 99_999, 10**9)]
    assert keys == sorted(keys)
    assert not any("." in key for key in keys)


def test_errors_travel_between_processes() -> None:
    """Fails when a worker's error becomes another error on its way to the driver."""
    for error in (DocumentError("empty", "nothing"), *(rule("f.tar", "x") for rule in FORMAT_RULES.values())):
        copy = pickle.loads(pickle.dumps(error))
        assert type(copy) is type(error)
        assert str(copy) == str(error)


def test_members_of_a_tar_are_whole_blocks() -> None:
    """Fails when padding, the end of a tar or a header is not what tar prescribes."""
    assert bytes(1024) == TAR_END
    member = tar_member("a.json", b"x" * 513)
    assert len(member) == 3 * 512
    assert member[512:] == b"x" * 513 + bytes(511)
    assert tar_member("a.json", b"x" * 512)[512:] == b"x" * 512
    with tarfile.open(fileobj=io.BytesIO(member + TAR_END)) as tar:
        [info] = tar
        assert (info.name, info.size, info.mode, info.mtime, info.uid) == ("a.json", 513, 0o444, 0, 0)


@example(name="a", size=8**11)
@given(name=st.text(st.sampled_from("az09._-/é"), max_size=101), size=st.integers(0, 8**11))
def test_headers_of_members_are_those_of_tarfile(name: str, size: int) -> None:
    """Fails when a field that is filled in by hand differs from what `tarfile` writes, or a limit is another."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o444
    try:
        expected: bytes | str = info.tobuf(format=tarfile.USTAR_FORMAT)
    except ValueError as error:
        expected = str(error)
    try:
        found: bytes | str = tar_header(name, size)
    except ValueError as error:
        found = str(error)
    assert found == expected


@pytest.mark.parametrize("number", ["NaN", "Infinity"])
def test_numbers_that_are_none_are_refused(number: str) -> None:
    """Fails when a time of a sample's head may be no number, which every comparison with it would pass."""
    image = {"doc_id": "a", "unit": 0, "width": 1, "height": 1, "timestamp": 0.5, "offset": 0, "size": 1, "crc32c": 0}
    given = json.dumps(image)
    assert StoredImage.model_validate_json(given).timestamp == 0.5
    with pytest.raises(ValidationError, match="finite number"):
        StoredImage.model_validate_json(given.replace("0.5", number))
