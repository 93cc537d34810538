"""Encodes and decodes arrays, records, tars and tables: the one place that knows the bytes of each member."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Sequence

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from jaxtyping import UInt64
from pydantic import BaseModel

from preshard.schemas.columns import TokenColumn
from preshard.schemas.errors import (
    ColumnsInvalid,
    LayoutsInvalid,
    MemberChanged,
    SequenceInvalid,
)
from preshard.schemas.files.npz import decode_arrays, encode_arrays
from preshard.schemas.layout import TokenLayout, layout_name
from preshard.schemas.sequence import SEQUENCE_DTYPES, PackedSequence

HEAD, SEQUENCE, LAYOUTS = "json", "sequence.npz", "layouts.npz"
"""Extensions of the first three members of a sample, in their order in the tar."""

HEADER_MEMBERS = (HEAD, SEQUENCE, LAYOUTS)
"""The header part of a sample; the crops follow it."""

TAR_BLOCK = 512
TAR_END = bytes(2 * TAR_BLOCK)


def shard_name(index: int) -> str:
    """File name of a shard, below ``shards/``."""
    return f"preshard-{index:06d}.tar"


def sample_key(pack_id: int) -> str:
    """Key of the sample that holds a pack: without a dot, and sorted as the packs are."""
    return f"{pack_id:010d}"


def image_extension(image_format: str) -> str:
    return {"jpeg": "jpg", "png": "png"}[image_format]


def image_member(key: str, index: int, image_format: str) -> str:
    return f"{key}.{index:04d}.{image_extension(image_format)}"


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


def decode_sequence(
    data: bytes, seq_len: int, where: str, *, axes: int, columns: Sequence[TokenColumn] = ()
) -> PackedSequence:
    """Raises SequenceInvalid or ColumnsInvalid: an array is missing or unknown, or has the wrong dtype or shape."""
    room = {"position_ids": axes} | {column.member: column.width or 1 for column in columns}
    try:
        arrays = decode_arrays(data, lambda name: 8 * seq_len * room.get(name, 1))  # another type is told of below
    except ValueError as error:
        raise SequenceInvalid(where, str(error)) from None
    names, rest = list(arrays)[: len(SEQUENCE_DTYPES)], list(arrays)[len(SEQUENCE_DTYPES) :]
    if names != list(SEQUENCE_DTYPES):
        raise SequenceInvalid(where, f"holds the arrays {list(arrays)}, not {list(SEQUENCE_DTYPES)}")
    for name, dtype in SEQUENCE_DTYPES.items():
        array, shape = arrays[name], (axes, seq_len) if name == "position_ids" else (seq_len,)
        if array.dtype != dtype or array.shape != shape:
            raise SequenceInvalid(where, f"{name} is {array.dtype}{array.shape}, not {dtype}{shape}")
    if rest != [column.member for column in columns]:
        raise ColumnsInvalid(where, f"holds the columns {rest}, not {[column.member for column in columns]}")
    for column in columns:
        array, asked = arrays[column.member], column.shape(seq_len)
        if array.dtype != column.dtype or array.shape != asked:
            raise ColumnsInvalid(where, f"{column.member} is {array.dtype}{array.shape}, not {column.dtype}{asked}")
    return PackedSequence(
        **{name: arrays[name] for name in SEQUENCE_DTYPES},
        columns={column.name: arrays[column.member] for column in columns},
    )


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


def decode_layouts(data: bytes, seq_len: int, block_size: int, where: str) -> dict[str, TokenLayout]:
    """Layouts by name, such as ``zigzag.ring4``.

    Args:
        data: the member's bytes.
        seq_len: tokens of the pack.
        block_size: tokens of a block of ``needs``, of the dataset's configuration.
        where: how errors name the member.

    Raises:
        LayoutsInvalid: not an ``.npz``, a name that no layout has, or an array of another dtype or shape.
    """
    blocks = -(-seq_len // block_size)
    try:
        arrays = decode_arrays(data, lambda name: _layout_room(name, seq_len, blocks))
    except ValueError as error:
        raise LayoutsInvalid(where, str(error)) from None
    layouts: dict[str, TokenLayout] = {}
    for name, runs in arrays.items():
        if name.endswith((".needs", ".window_needs")):
            continue
        scheme, _, degree = name.partition(".ring")
        needs, window_needs = arrays.get(f"{name}.needs"), arrays.get(f"{name}.window_needs")
        if not (degree.isascii() and degree.isdecimal()) or name != layout_name(scheme, int(degree)) or needs is None:
            raise LayoutsInvalid(where, f"{name} is not SCHEME.ringR with an array SCHEME.ringR.needs beside it")
        if runs.dtype != np.int32 or runs.ndim != 2 or runs.shape[1] != 3:
            raise LayoutsInvalid(where, f"{name} is {runs.dtype}{runs.shape}, not int32(n, 3)")
        for kind, found in (("needs", needs), ("window_needs", window_needs)):
            if found is not None and (found.dtype != np.bool_ or found.shape != (int(degree), blocks)):
                raise LayoutsInvalid(
                    where, f"{name}.{kind} is {found.dtype}{found.shape}, not bool({degree}, {blocks})"
                )
        layouts[name] = TokenLayout(
            scheme=scheme,
            ring_degree=int(degree),
            block_size=block_size,
            runs=runs,
            needs=needs,
            window_needs=window_needs,
        )
    if sum(2 + (layout.window_needs is not None) for layout in layouts.values()) != len(arrays):
        raise LayoutsInvalid(where, "holds a needs array without its layout")
    return layouts


def _layout_room(name: str, seq_len: int, blocks: int) -> int:
    """The most bytes of an array of a layout: three int32 for each token, or a bool for each rank and block."""
    if not name.endswith(("needs", "window_needs")):
        return 12 * seq_len
    degree = name.partition(".ring")[2].partition(".")[0]
    return blocks * min(int(degree), seq_len) if degree.isdecimal() and len(degree) < 10 else 0


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


def crc32c(data: bytes) -> int:
    """The CRC-32C of some bytes, as in iSCSI (RFC 3720) and object stores. 1 GB takes about a tenth of a second."""
    return int(google_crc32c.value(data))


def check_member(data: bytes, stored: int, where: str) -> None:
    """Checks a member's content against its stored checksum.

    Raises:
        MemberChanged: they differ.
    """
    found = crc32c(data)
    if found != stored:
        raise MemberChanged(where, f"has the CRC-32C {found}, not {stored}: its bytes were damaged after writing")
