"""Encodes and decodes arrays, records, tars and tables: the one place that knows the bytes of each member."""

from __future__ import annotations

from collections.abc import Sequence

import google_crc32c
import numpy as np

from preshard.schemas.errors import ColumnsInvalid, LayoutsInvalid, MemberChanged, SequenceInvalid
from preshard.schemas.files.npz import decode_arrays
from preshard.schemas.layout import TokenLayout, layout_name
from preshard.schemas.sequence import SEQUENCE_DTYPES, PackedSequence, TokenColumn

HEAD, SEQUENCE, LAYOUTS = "json", "sequence.npz", "layouts.npz"
"""Extensions of the first three members of a sample, in their order in the tar."""

HEADER_MEMBERS = (HEAD, SEQUENCE, LAYOUTS)
"""The header part of a sample; the crops follow it."""

TAR_BLOCK = 512


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
