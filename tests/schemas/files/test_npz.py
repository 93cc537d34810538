"""Arrays to bytes and back: a ZIP that any reader takes, of the same bytes every time."""

from __future__ import annotations

import io
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as drawn

from preshard.schemas.files.npz import decode_arrays
from preshard.schemas.files.npz_write import COUNTING, encode_arrays


def by_zipfile(arrays: dict[str, np.ndarray]) -> bytes:
    """The same archive as the standard library writes it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as stored:
        for name, array in arrays.items():
            entry, content = zipfile.ZipInfo(f"{name}.npy"), io.BytesIO()
            entry.compress_type = zipfile.ZIP_LZMA if name in COUNTING else zipfile.ZIP_DEFLATED
            np.lib.format.write_array(content, array, allow_pickle=False)
            stored.writestr(entry, content.getvalue())
    return buffer.getvalue()


def test_deflated_arrays_are_written_as_the_standard_library_writes_them() -> None:
    """Fails when a field of the archive's headers or directory has another value: size, place, checksum, version."""
    arrays = {"tokens": np.arange(5000, dtype=np.int32) % 77, "ring2.needs": np.zeros((2, 3), np.bool_)}
    for chosen in ({}, {"tokens": arrays["tokens"]}, arrays):
        assert encode_arrays(chosen) == by_zipfile(chosen)


def test_counting_arrays_differ_from_the_standard_library_by_their_compressed_bytes_alone() -> None:
    """Fails when a member of method 14 says something else of itself than the standard library would."""
    arrays = {"position_ids": np.arange(9000, dtype=np.int32)[None], "tokens": np.ones(8, np.int32)}
    ours, theirs = (zipfile.ZipFile(io.BytesIO(write(arrays))) for write in (encode_arrays, by_zipfile))
    assert ours.testzip() is None
    for own, usual in zip(ours.infolist(), theirs.infolist(), strict=True):
        for name in ("filename", "compress_type", "flag_bits", "extract_version", "create_version", "create_system",
                     "external_attr", "date_time", "CRC", "file_size", "extra", "volume"):  # fmt: skip
            assert getattr(own, name) == getattr(usual, name), name
    assert ours.getinfo("position_ids.npy").compress_type == zipfile.ZIP_LZMA


@settings(max_examples=30, deadline=None)
@given(
    arrays=st.dictionaries(
        st.sampled_from(["tokens", "labels", *COUNTING, "zigzag.ring2"]),
        drawn.arrays(st.sampled_from([np.int32, np.float32, np.bool_]), drawn.array_shapes(min_dims=1, max_dims=2)),
    )
)
def test_any_arrays_come_back_and_numpy_reads_them(arrays: dict[str, np.ndarray]) -> None:
    """Fails when an array of some shape or content, an empty one among them, is not what it was."""
    data = encode_arrays(arrays)
    assert data == encode_arrays(arrays)
    found = decode_arrays(data, lambda _: 1 << 40)
    assert list(found) == list(arrays)
    with np.load(io.BytesIO(data)) as read:
        for name, array in arrays.items():
            np.testing.assert_array_equal(found[name], array)
            np.testing.assert_array_equal(read[name], array)


@pytest.mark.parametrize("axes", [1, 3])
def test_numbers_that_count_up_leave_a_tenth(axes: int) -> None:
    """Fails when the search for repetitions finds none in numbers that count up, as rows and positions do."""
    counting = np.arange(20_000, dtype=np.int32)
    arrays = {"position_ids": np.tile(counting, (axes, 1)), "pool_ids": counting}
    assert len(encode_arrays(arrays)) < sum(array.nbytes for array in arrays.values()) / 7


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24, dtype=np.int32).reshape(2, 3, 4),
        np.asfortranarray(np.arange(6, dtype=np.int64).reshape(2, 3)),
        np.array(7, np.int32),
        np.array([1.5], ">f8"),
        np.arange(3, dtype=np.uint8),
    ],
    ids=["three axes", "columns first", "no axis", "big-endian", "unsigned"],
)
def test_what_preshard_does_not_write_itself_is_read_as_well(array: np.ndarray) -> None:
    """Fails when an array is read by another header than its own, or refused."""
    found = decode_arrays(by_zipfile({"tokens": array}), lambda _: 1 << 40)["tokens"]
    np.testing.assert_array_equal(found, array)
    assert found.dtype == array.dtype


def test_an_array_that_was_read_may_be_written_to() -> None:
    """Fails when an array is a view of bytes: PyTorch warns of such arrays, and NumPy refuses to write to them."""
    assert decode_arrays(encode_arrays({"tokens": np.arange(9, dtype=np.int32)}), lambda _: 1 << 40)[
        "tokens"
    ].flags.writeable


@pytest.mark.parametrize("length", [8, 5])
@pytest.mark.parametrize("is_short", [True, False])
def test_a_header_that_says_another_number_than_there_are_is_refused(length: int, is_short: bool) -> None:
    """Fails when an array is cut short in silence, or what lies behind it is taken for part of it."""
    whole, part = io.BytesIO(), io.BytesIO()
    np.lib.format.write_array(whole, np.arange(9, dtype=np.int32), allow_pickle=False)
    np.lib.format.write_array(part, np.arange(length, dtype=np.int32), allow_pickle=False)
    header, content = (whole, part) if is_short else (part, whole)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as stored:
        stored.writestr("tokens.npy", header.getvalue()[:128] + content.getvalue()[128:])
    with pytest.raises(ValueError, match=r"is not an \.npz of arrays"):
        decode_arrays(archive.getvalue(), lambda _: 1 << 40)
