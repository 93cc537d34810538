"""Finds a part of ids that lie one after the other in a file, by comparing bytes and without taking ids apart.

Every place at which the part might begin is looked at, a block at a time: first for its rarest byte, then for the next,
until so few are left that each is looked at by itself. Arrow's search for a part decides about each id by itself, which
takes two to three times as long; what ids begin with it finds faster.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Bool, Int64, UInt8

BLOCK_BYTES = 1 << 20
"""Bytes of ids that are looked through at once: with what is made of them they fit into a processor's cache."""

FEW = 64
"""One place in so many is few enough to look at each by itself."""

SAMPLE_BYTES = 1 << 16
"""Bytes of ids by which it is decided which byte is rare."""


def rows_with(
    ids: UInt8[np.ndarray, "bytes"],
    edges: Int64[np.ndarray, "rows_plus_1"],
    part: bytes,
    *,
    block_bytes: int = BLOCK_BYTES,
) -> Int64[np.ndarray, "some"]:
    """The rows whose id contains a part, ascending.

    Args:
        ids: all ids in UTF-8, in which no character lies within another one.
        edges: where each begins, and where the last one ends.
        part: what is looked for; every row contains nothing.
        block_bytes: bytes that are looked through at once, and more where one id has more.
    """
    if not part:
        return np.arange(len(edges) - 1)
    wanted = np.frombuffer(part, np.uint8)
    counts = np.bincount(ids[:SAMPLE_BYTES], minlength=256)
    order = np.argsort(counts[wanted], kind="stable").tolist()
    places = np.searchsorted(edges, np.arange(0, int(edges[-1]) + block_bytes, block_bytes))
    bounds = np.unique(np.clip(places, 0, len(edges) - 1))

    def in_block(number: int) -> Int64[np.ndarray, "some"]:
        first, last = int(bounds[number]), int(bounds[number + 1])
        own = np.asarray(edges[first : last + 1])
        places = own[0] + _places(np.asarray(ids[own[0] : own[-1]]), wanted, order)
        rows = np.searchsorted(own, places, side="right") - 1
        holds = places + len(part) <= own[rows + 1]  # it may begin in one id and end in the next
        rows = rows[holds]
        return first + rows[np.flatnonzero(np.diff(rows, prepend=-1))]

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return np.concatenate([np.zeros(0, np.int64), *pool.map(in_block, range(len(bounds) - 1))])


def rows_beginning_with(
    ids: UInt8[np.ndarray, "bytes"], edges: Int64[np.ndarray, "rows_plus_1"], part: bytes
) -> Int64[np.ndarray, "some"]:
    """The rows whose id begins with a part, ascending. Arrow reads the ids where they lie, each at its beginning."""
    places = [None, pa.py_buffer(edges), pa.py_buffer(ids)]
    begins = pc.starts_with(pa.Array.from_buffers(pa.large_binary(), len(edges) - 1, places), part)
    return np.flatnonzero(np.from_dlpack(begins.cast(pa.uint8())))


def _places(
    data: UInt8[np.ndarray, "bytes"], wanted: UInt8[np.ndarray, "part"], order: list[int]
) -> Int64[np.ndarray, "some"]:
    """Where a part begins in some bytes.

    Args:
        data: the bytes.
        wanted: the part.
        order: the places in it, that of the rarest byte first.
    """
    n = len(data) - len(wanted) + 1
    if n <= 0:
        return np.zeros(0, np.int64)
    may: Bool[np.ndarray, "places"] = np.ones(n, bool)
    equal = np.empty(n, bool)
    for done, at in enumerate(order):
        np.equal(data[at : at + n], wanted[at], out=equal)
        may &= equal
        if np.count_nonzero(may) * FEW < n:
            return _those_of(np.flatnonzero(may), data, wanted, order[done + 1 :])
    return np.flatnonzero(may)


def _those_of(
    places: Int64[np.ndarray, "some"],
    data: UInt8[np.ndarray, "bytes"],
    wanted: UInt8[np.ndarray, "part"],
    left: list[int],
) -> Int64[np.ndarray, "fewer"]:
    """The places at which the bytes that are left to compare are the same too."""
    for at in left:
        places = places[data[places + at] == wanted[at]]
    return places
