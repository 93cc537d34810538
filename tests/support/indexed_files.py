"""Writes Megatron's indexed datasets byte by byte, as its documentation describes them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

CODES = {
    "uint8": (1, "B"),
    "int8": (2, "b"),
    "int16": (3, "h"),
    "int32": (4, "i"),
    "int64": (5, "q"),
    "uint16": (8, "H"),
}
"""Code of each type in an index, and its letter in ``struct``."""

Documents = Sequence[Sequence[Sequence[int]]]
"""Documents of sequences of tokens."""


def write_indexed(path: Path, documents: Documents, dtype: str = "int32", modes: Sequence[int] | None = None) -> Path:
    """Writes ``path``, which ends in ``.bin``, and its index; returns the path."""
    code, letter = CODES[dtype]
    sequences = [sequence for document in documents for sequence in document]
    lengths = [len(sequence) for sequence in sequences]
    starts = [0, *accumulate(length * struct.calcsize(letter) for length in lengths)][: len(lengths)]
    edges = [0, *accumulate(map(len, documents))]
    path.write_bytes(b"".join(struct.pack(f"<{len(sequence)}{letter}", *sequence) for sequence in sequences))
    n, d = len(lengths), len(edges)
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, code, n, d)
    places = struct.pack(f"<{n}i", *lengths) + struct.pack(f"<{n}q", *starts) + struct.pack(f"<{d}q", *edges)
    path.with_suffix(".idx").write_bytes(header + places + struct.pack(f"<{len(modes or ())}b", *(modes or ())))
    return path
