"""Bytes that claim or grow to far more than they are: entries of an ``.npz``, and the footer of a Parquet file."""

from __future__ import annotations

import io
import struct
import zlib

import numpy as np

_STEP = 1 << 20


def bomb_of_zeros(name: str, array_bytes: int) -> bytes:
    """An ``.npz`` with one array of int32 zeros that is a thousandth as long as what it inflates to.

    Args:
        name: the array's.
        array_bytes: what it inflates to, below 4 GiB.
    """
    begin = io.BytesIO()
    header = {"descr": "<i4", "fortran_order": False, "shape": (array_bytes // 4,)}
    np.lib.format.write_array_header_1_0(begin, header)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = packer.compress(begin.getvalue()) + packer.flush(zlib.Z_FULL_FLUSH)
    zeros = packer.compress(bytes(_STEP)) + packer.flush(zlib.Z_FULL_FLUSH)  # the same wherever it stands
    return _zip(
        f"{name}.npy", stream + zeros * (array_bytes // _STEP) + packer.flush(), len(begin.getvalue()) + array_bytes
    )


def claim_of_shape(name: str, shape: tuple[int, ...]) -> bytes:
    """An ``.npz`` with one array that says it has a shape, and has no values."""
    begin = io.BytesIO()
    np.lib.format.write_array_header_1_0(begin, {"descr": "<i4", "fortran_order": False, "shape": shape})
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    deflated = packer.compress(begin.getvalue()) + packer.flush()
    return _zip(f"{name}.npy", deflated, len(begin.getvalue()), zlib.crc32(begin.getvalue()))


def _zip(name: str, deflated: bytes, size: int, checksum: int = 0) -> bytes:
    """A ZIP of one entry. A wrong checksum shows only to those who read the entry to its end."""
    fields = (20, 0, zlib.DEFLATED, 0, 33, checksum, len(deflated), size, len(name), 0)
    local = struct.pack("<4s5H3I2H", b"PK\3\4", *fields) + name.encode()
    central = struct.pack("<4s6H3I5H2I", b"PK\1\2", 20, *fields, 0, 0, 0, 0, 0) + name.encode()
    end = struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, 1, 1, len(central), len(local) + len(deflated), 0)
    return local + deflated + central + end


def claim_of_rows(parquet: bytes, rows: int, claimed: int) -> bytes:
    """A Parquet file whose footer says that it, its row group and its columns have more rows than they do.

    Args:
        parquet: the file.
        rows: how many rows it has, a number that its footer holds nowhere else.
        claimed: how many it is to claim.
    """
    size = int.from_bytes(parquet[-8:-4], "little")
    start, footer = parquet[: -8 - size], parquet[-8 - size : -8]
    told = footer.replace(b"\x16" + _zigzag(rows), b"\x16" + _zigzag(claimed))
    assert told != footer, "the footer holds the number of rows in another way"
    return start + told + len(told).to_bytes(4, "little") + parquet[-4:]


def _zigzag(number: int) -> bytes:
    """A whole number as Thrift's compact protocol writes it."""
    left, found = number << 1, bytearray()
    while left >= 0x80:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])
