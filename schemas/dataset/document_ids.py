"""The canonical order of documents: by a hash of the id, so that no plan depends on the order in which rows come.

Of rows that differ and have the id ``x``, one keeps it, and others get numbers: ``x#2``, ``x#3``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int, Int64, UInt64

from preshard.schemas.dataset.step_order import mix64

_BATCH = 65_536
"""Ids hashed at a time: some 50 MiB of intermediate arrays for ids of twenty characters."""

MAX_NUMBER = 999_999
"""Largest number behind an id. All ids of one stem are planned together, so there are no more than a partition has."""

_NUMBER = r"#[1-9][0-9]{0,5}\z"

_BASE = 0x9E3779B97F4A7C15
"""Odd, so that no power of it is 0 modulo 2**64; the fraction of the golden ratio."""


def hash_ids(ids: pa.Array | pa.ChunkedArray) -> UInt64[np.ndarray, "docs"]:
    """64 well-mixed bits of each id, the same on every machine and in every version.

    Args:
        ids: strings without nulls.
    """
    chunks = ids.chunks if isinstance(ids, pa.ChunkedArray) else [ids]
    return mix64(np.concatenate([np.zeros(0, np.uint64), *map(_polynomials, _batches(chunks))]))


def id_stems(ids: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    """Ids without the number that is, or may be taken for, the one of a row whose id others have as well."""
    return pc.replace_substring_regex(ids, _NUMBER, "")


def canonical_order(
    hashes: UInt64[np.ndarray, "docs"],
    ids: pa.Array | pa.ChunkedArray,
    pieces: Int[np.ndarray, "docs"],
) -> Int64[np.ndarray, "docs"]:
    """The rows of documents in canonical order: by the hash of the id, then by piece.

    Different ids with one hash, which hardly ever occur, stand in the order of the ids themselves.

    Args:
        hashes: of each row's id, from :func:`hash_ids`.
        ids: of each row.
        pieces: of each row; 0 for a document that is not split. No two rows have the same id and piece.
    """
    order = np.lexsort((pieces, hashes)) if pieces.any() else np.argsort(hashes, kind="stable")
    ordered, place = hashes[order], pieces[order]
    for value in np.unique(ordered[1:][(ordered[1:] == ordered[:-1]) & (place[1:] == place[:-1])]):
        tied = slice(*(int(np.searchsorted(ordered, value, side)) for side in ("left", "right")))
        names = ids.take(pa.array(order[tied])).to_pylist()
        order[tied] = [row for _, _, row in sorted(zip(names, place[tied], order[tied], strict=True))]
    return order


def _batches(chunks: list[pa.Array]) -> Iterator[pa.Array]:
    for chunk in chunks:
        for at in range(0, len(chunk), _BATCH):
            yield chunk.slice(at, _BATCH)


def _polynomials(ids: pa.Array) -> UInt64[np.ndarray, "docs"]:
    """The sum of (b[i] + 1) * BASE**(i + 1) modulo 2**64 over the bytes b of each string."""
    data = pc.binary_join(pa.array([ids.cast(pa.string())], pa.list_(pa.string())), "").cast(pa.binary())[0].as_buffer()
    edges = np.concatenate([[0], np.cumsum(pc.binary_length(ids).to_numpy())])
    values = np.frombuffer(data, np.uint8)
    lengths = np.diff(edges)
    powers = np.cumprod(np.full(lengths.max(initial=0), _BASE, np.uint64))
    place = np.arange(edges[-1]) - np.repeat(edges[:-1], lengths)
    sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum((values + np.uint64(1)) * powers[place])])
    hashes: UInt64[np.ndarray, "docs"] = sums[edges[1:]] - sums[edges[:-1]]
    return hashes
