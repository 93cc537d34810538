"""Encodes arrays, records, tars and tables: the bytes that a dataset is written in."""

from __future__ import annotations

import io
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import UInt64
from pydantic import BaseModel

from preshard.schemas.files.npz_write import encode_arrays
from preshard.schemas.layout import TokenLayout
from preshard.schemas.members import TAR_BLOCK
from preshard.schemas.sequence import SEQUENCE_DTYPES, PackedSequence

TAR_END = bytes(2 * TAR_BLOCK)


def tar_header(name: str, size: int) -> bytes:
    """The 512-byte USTAR header of a member: mode 0444, no time, no owner. Name and size determine every byte.

    Raises:
        ValueError: USTAR cannot hold the name or the size.
    """
    short = name.encode("ascii", "replace")
    if len(short) > _PLAIN_NAME or size > _PLAIN_SIZE or not name.isascii():
        return _tar_header(name, size)
    start = short.ljust(_PLAIN_NAME, b"\0") + _EMPTY_MEMBER[_PLAIN_NAME:_SIZE_AT]
    digits = b"%011o" % size
    # the sum of the header's bytes, which for those of the empty member is stored in it
    checksum = _EMPTY_SUM + sum(short) + sum(digits) - 11 * ord("0")
    end = _EMPTY_MEMBER[_SIZE_AT + 11 : _CHECKSUM_AT] + b"%06o" % checksum + _EMPTY_MEMBER[_CHECKSUM_AT + 6 :]
    return start + digits + end


def _tar_header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o444
    return info.tobuf(format=tarfile.USTAR_FORMAT)


_PLAIN_NAME, _SIZE_AT, _CHECKSUM_AT = 100, 124, 148
"""Bytes of a member's name in a USTAR header, and where its size and its checksum stand."""

_PLAIN_SIZE = 8**11 - 1
"""The largest size in eleven octal digits."""

_EMPTY_MEMBER = _tar_header("", 0)
"""Header with all that headers share: filling in three fields takes a tenth of the time that making one does, and a
header stands before each crop."""

_EMPTY_SUM = int(_EMPTY_MEMBER[_CHECKSUM_AT : _CHECKSUM_AT + 6], 8)


def tar_member(name: str, data: bytes) -> bytes:
    """One tar member: its header, the data, zeros up to a whole block."""
    return b"".join(tar_parts(name, data))


def tar_parts(name: str, data: bytes) -> tuple[bytes, bytes, bytes]:
    """Parts of a tar member, one after the other: many are joined without being copied twice."""
    return tar_header(name, len(data)), data, bytes(-len(data) % TAR_BLOCK)


def encode_json(record: BaseModel) -> bytes:
    """A record as compact UTF-8 JSON, keys in the order of the record's declaration."""
    return record.model_dump_json().encode()


def encode_sequence(sequence: PackedSequence) -> bytes:
    arrays = {name: getattr(sequence, name) for name in SEQUENCE_DTYPES}
    return encode_arrays(arrays | {f"columns.{name}": sequence.columns[name] for name in sorted(sequence.columns)})


def encode_layouts(layouts: list[TokenLayout]) -> bytes:
    """Stores the ``runs`` of each layout under its name, its ``needs`` under ``NAME.needs``, and those of layers with a
    window, where it has them, under ``NAME.window_needs``.
    """
    arrays: dict[str, np.ndarray] = {}
    for layout in layouts:
        arrays[layout.name] = layout.runs.astype(np.int32)
        arrays[f"{layout.name}.needs"] = layout.needs.astype(np.bool_)
        if layout.window_needs is not None:
            arrays[f"{layout.name}.window_needs"] = layout.window_needs.astype(np.bool_)
    return encode_arrays(arrays)


def encode_index(offsets: UInt64[np.ndarray, "samples_plus_1"]) -> bytes:
    return np.asarray(offsets, dtype="<u8").tobytes()


def decode_index(data: bytes) -> UInt64[np.ndarray, "samples_plus_1"]:
    """Raises ValueError: empty, or not a whole number of 8-byte offsets."""
    if len(data) % 8 or not data:
        raise ValueError(f"has {len(data)} bytes, not a positive multiple of 8")
    return np.frombuffer(data, dtype="<u8").astype(np.uint64)


def encode_table(table: pa.Table) -> bytes:
    """A table as Parquet, zstd-compressed. The same rows give the same bytes."""
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd")
    return buffer.getvalue()
