"""Arrays as a ``.npz``, a ZIP of ``.npy`` files, each compressed as suits what it holds."""

from __future__ import annotations

import io
import lzma
import struct
import zipfile
import zlib
from collections.abc import Mapping

import numpy as np

from preshard.schemas.files.npz import LOCAL

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


def encode_arrays(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Arrays as a compressed ``.npz``; the same arrays give the same bytes."""
    members, directory, at = list[bytes](), list[bytes](), 0
    for name, array in arrays.items():
        method = zipfile.ZIP_LZMA if name in COUNTING else zipfile.ZIP_DEFLATED
        file, content = f"{name}.npy".encode("ascii"), _npy(array)
        compressed = _lzma(content) if method == zipfile.ZIP_LZMA else _deflated(content)
        common = (_ENDS_BY_MARK[method], method, 0, _NEW_YEAR_1980, zlib.crc32(content), len(compressed), len(content))
        header = LOCAL.pack(b"PK\3\4", _NEEDS[method], *common, len(file), 0) + file
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
