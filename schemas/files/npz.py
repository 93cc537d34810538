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
from collections.abc import Callable, Mapping
from typing import IO

import numpy as np

COUNTING = ("position_ids", "pool_ids")
"""Arrays that count up for long stretches. Deflate, which finds only what occurred before, leaves a third of them; LZMA
a tenth, at some 2 ms more to read one."""

_LC, _LP, _PB = 2, 2, 2
"""Bits of context from which LZMA takes a byte's probabilities: its place among the four of a whole number, and the
byte before it."""

_DICTIONARY = 1 << 20
"""Bytes that LZMA looks back. Those of one axis of positions repeat on the others."""

_FILTER = {
    "id": lzma.FILTER_LZMA1,
    "mode": lzma.MODE_FAST,
    "mf": lzma.MF_HC3,
    "nice_len": 3,
    "depth": 4,
    "dict_size": _DICTIONARY,
    "lc": _LC,
    "lp": _LP,
    "pb": _PB,
}
"""Numbers that count up repeat three bytes of four, so a search that is content with three finds what there is; the
default looks for longer repetitions, weighs them against each other, and leaves a tenth less."""

_LZMA_HEAD = struct.pack("<BBHBL", 9, 4, 5, (_PB * 5 + _LP) * 9 + _LC, _DICTIONARY)
"""Head of a member of method 14: a version, the size of the properties, and these (APPNOTE 5.8.8)."""

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s4B4H3L5H2L")
_END = struct.Struct("<4s4H2LH")
"""A member's header, its entry in the directory, and the directory's end (APPNOTE 4.3.7, 4.3.12, 4.3.16)."""

_NEW_YEAR_1980 = (1 << 5) | 1
"""The date of every member: the first that ZIP can name, so that equal arrays give equal bytes."""

_NEEDS = {zipfile.ZIP_DEFLATED: 20, zipfile.ZIP_LZMA: 63}
"""The version of ZIP, times ten, that reading a method needs."""

_ENDS_BY_MARK = {zipfile.ZIP_DEFLATED: 0, zipfile.ZIP_LZMA: 2}
"""The flag that an LZMA stream says itself where it ends."""

_UNIX, _OWNER_READS_AND_WRITES = 3, 0o600 << 16

_HEADER = 128
"""Bytes of the header that NumPy writes before an array of one or two axes."""

_PLAIN = re.compile(
    rb"\x93NUMPY\x01\x00v\x00"
    rb"\{'descr': '([<|][bif]\d)', 'fortran_order': False, 'shape': \((\d+),(?: (\d+))?\), \} *\n"
)
"""Pattern of a header of plain numbers: its type and its axes. NumPy's own reader takes every header for a Python
literal, which takes longer than all the rest of reading a small array."""


def encode_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Arrays as a compressed ``.npz``; the same arrays give the same bytes."""
    members, directory, at = list[bytes](), list[bytes](), 0
    for name, array in arrays.items():
        method = zipfile.ZIP_LZMA if name in COUNTING else zipfile.ZIP_DEFLATED
        file, content = f"{name}.npy".encode("ascii"), _npy(array)
        compressed = _lzma(content) if method == zipfile.ZIP_LZMA else _deflated(content)
        common = (_ENDS_BY_MARK[method], method, 0, _NEW_YEAR_1980, zlib.crc32(content), len(compressed), len(content))
        header = _LOCAL.pack(b"PK\3\4", _NEEDS[method], *common, len(file), 0) + file
        versions = (_NEEDS[method], _UNIX, _NEEDS[method], 0)
        entry = _CENTRAL.pack(b"PK\1\2", *versions, *common, len(file), 0, 0, 0, 0, _OWNER_READS_AND_WRITES, at)
        directory.append(entry + file)
        members += header, compressed
        at += len(header) + len(compressed)
    size = sum(map(len, directory))
    end = _END.pack(b"PK\5\6", 0, 0, len(directory), len(directory), size, at, 0)
    return b"".join([*members, *directory, end])


def _npy(array: np.ndarray) -> bytes:
    content = io.BytesIO()
    np.lib.format.write_array(content, array, allow_pickle=False)
    return content.getvalue()


def _deflated(content: bytes) -> bytes:
    return zlib.compress(content, wbits=-zlib.MAX_WBITS)


def _lzma(content: bytes) -> bytes:
    compressor = lzma.LZMACompressor(lzma.FORMAT_RAW, filters=[_FILTER])
    return _LZMA_HEAD + compressor.compress(content) + compressor.flush()


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
    *_, name, extra = _LOCAL.unpack_from(data, at)
    begin = at + _LOCAL.size + name + extra
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
