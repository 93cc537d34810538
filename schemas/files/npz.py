"""Arrays as a ``.npz``, a ZIP of ``.npy`` files, each compressed as suits what it holds; and back.

Reading the ZIP is left to :mod:`zipfile`, but for inflating LZMA, which there has no limit. Writing is not: it has no
setting for how LZMA looks for repetitions, and its default takes five times as long on the arrays of a pack as the
search chosen here.
"""

from __future__ import annotations

import io
import lzma
import math
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from typing import IO

import numpy as np

LOCAL = struct.Struct("<4s5H3L2H")

_HEADER = 128
"""Bytes of the header that NumPy writes before an array of one or two axes."""

_PLAIN = re.compile(
    rb"\x93NUMPY\x01\x00v\x00"
    rb"\{'descr': '([<|][bif]\d)', 'fortran_order': False, 'shape': \((\d+),(?: (\d+))?\), \} *\n"
)
"""Pattern of a header of plain numbers: its type and its axes. NumPy's own reader takes every header for a Python
literal, which takes longer than all the rest of reading a small array."""

MOST_MEMBERS = 1024
"""Most members of an archive: four schemes at 64 degrees have 768."""

_MOST_HEADER = 4096
"""Bytes of the header before an array."""

_MOST_DICTIONARY = 64 << 20
"""Bytes that a member of LZMA may look back, which take memory before anything is read."""


def decode_arrays(data: bytes, room: Callable[[str], int]) -> dict[str, np.ndarray]:
    """The arrays of a ``.npz``.

    Args:
        data: its bytes.
        room: the most bytes that an array of a name may have; no more are ever inflated.

    Raises:
        ValueError: it is no ``.npz`` of plain arrays, or one has more bytes.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as stored:
            members = stored.infolist()
            if len(members) > MOST_MEMBERS:
                raise ValueError(f"{len(members):,} members, where at most {MOST_MEMBERS:,} are legal")
            return {
                (name := entry.filename.removesuffix(".npy")): _decode_array(data, stored, entry, room(name))
                for entry in members
            }
    except Exception as error:  # a damaged archive can surface as nearly any exception
        raise ValueError(f"is not an .npz of arrays ({type(error).__name__}: {error!s:.300})") from None


def _decode_array(data: bytes, stored: zipfile.ZipFile, entry: zipfile.ZipInfo, most: int) -> np.ndarray:
    if entry.file_size > most + _MOST_HEADER:
        raise ValueError(
            f"{entry.filename!r:.80} inflates to {entry.file_size:,} bytes; its array has at most {most:,}"
        )
    with stored.open(entry) as opened:
        file = io.BytesIO(_inflated(data, entry)) if entry.compress_type == zipfile.ZIP_LZMA else opened
        head = file.read(_HEADER)
        plain = _PLAIN.fullmatch(head)
        if plain is not None:
            return _at_end(_numbers(file, *plain.groups()), file, entry)
        content = io.BytesIO(head + file.read())
    shape, _, dtype = _read_header(content)
    if math.prod(shape) * dtype.itemsize != len(content.getbuffer()) - content.tell():
        raise ValueError(f"{entry.filename!r:.80} has not the bytes that its shape {shape!r:.80} asks for")
    content.seek(0)
    array: np.ndarray = np.lib.format.read_array(content, allow_pickle=False)
    return array


def _read_header(content: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(content)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    found: tuple[tuple[int, ...], bool, np.dtype] = read(content)
    return found


def _inflated(data: bytes, entry: zipfile.ZipInfo) -> bytes:
    """A member of method 14, of which :mod:`zipfile` inflates a whole piece, however long that becomes."""
    at = entry.header_offset
    *_, name, extra = LOCAL.unpack_from(data, at)
    begin = at + LOCAL.size + name + extra
    packed = memoryview(data)[begin : begin + entry.compress_size]
    properties = int.from_bytes(packed[2:4], "little")
    kind, dictionary = struct.unpack("<BL", packed[4 : 4 + properties])
    if dictionary > _MOST_DICTIONARY:
        raise ValueError(f"{entry.filename!r:.80} looks {dictionary:,} bytes back")
    bits = {"lc": kind % 9, "lp": kind // 9 % 5, "pb": kind // 45}
    filters = [{"id": lzma.FILTER_LZMA1, "dict_size": dictionary, **bits}]
    inflate = lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=filters)
    content = inflate.decompress(packed[4 + properties :], entry.file_size + 1)
    if len(content) != entry.file_size or zlib.crc32(content) != entry.CRC:
        raise zipfile.BadZipFile(f"Bad CRC-32 or size of {entry.filename!r:.80}")
    return content


def _numbers(file: IO[bytes], descr: bytes, *axes: bytes | None) -> np.ndarray:
    """The array behind a header, in memory of its own that may be written to."""
    shape, dtype = [int(axis) for axis in axes if axis is not None], np.dtype(descr.decode())
    content = file.read(math.prod(shape) * dtype.itemsize)
    return np.ndarray(shape, dtype, bytearray(content))  # TypeError where they are fewer bytes


def _at_end(array: np.ndarray, file: IO[bytes], entry: zipfile.ZipInfo) -> np.ndarray:
    if file.read(1):
        raise ValueError(f"{entry.filename} has bytes after its array")
    return array
