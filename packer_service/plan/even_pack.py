"""Packs of several sources in which each source has its share, for no more packs than packing by size alone takes."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int, Int64

from preshard.packer_service.plan.blend import STRETCH, source_columns
from preshard.packer_service.plan.even_fit import even_fit
from preshard.schemas.document_ids import mix64

_NEAR_ENOUGH = 4000
"""A packing with one pack more in this many is taken as it is."""

_ENOUGH = 1000
"""Of those that were tried, the one with the fewest packs is taken up to one pack more in this many."""

_FEWER = (1024, 512, 256, 128)
"""Sources are spread over fewer packs than they take, by one in so many, since packs that hold exactly their share
leave more open. Tried in this order: the packs behind those hold what is left, unevenly."""


def even_packs(
    tokens: Int64[np.ndarray, "docs"],
    images: Int64[np.ndarray, "docs"],
    sources: Int[np.ndarray, "docs"],
    *,
    max_tokens: int,
    max_images: int | None,
    n_packs: int,
    salt: int,
) -> Int64[np.ndarray, "docs"] | None:
    """A packing in which each pack holds the sources in their shares, as far as documents' sizes allow it.

    Args:
        tokens: tokens that each document takes up, at least 1.
        images: images of each document.
        sources: number of each document's source.
        max_tokens: the first budget.
        max_images: the second budget; None for no limit.
        n_packs: packs that packing by size takes.
        salt: chooses which documents of a source and of one size share a pack.

    Returns:
        The pack of each document; None where packing by size may stay as it is: with one source, where there are fewer
        packs than the stretch that is promised its shares, and where even packs would be more packs.
    """
    columns = source_columns(sources, tokens)
    if n_packs < STRETCH or not columns.any():
        return None
    drawn = mix64(mix64(np.arange(len(tokens), dtype=np.uint64)) + np.uint64(salt % 2**64))
    order = np.lexsort((drawn, -images, -tokens, columns))
    first = np.flatnonzero(_differs(columns[order]) | _differs(tokens[order]) | _differs(images[order]))
    kind_tokens, kind_images = tokens[order[first]], images[order[first]]
    image_limit = int(images.sum()) if max_images is None else max_images
    size = np.maximum(kind_tokens * max(1, image_limit), kind_images * max_tokens)
    best, limit = None, n_packs + n_packs // _ENOUGH
    for part in _FEWER:
        found = even_fit(
            kind_tokens,
            kind_images,
            np.diff(first, append=len(order)),
            np.searchsorted(columns[order[first]], np.arange(int(columns.max()) + 2)),
            np.argsort(-size, kind="stable"),
            max_tokens,
            image_limit,
            n_packs - n_packs // part,
        )
        taken = int(found.max()) + 1
        if taken <= limit:
            best, limit = found, taken - 1
        if taken <= n_packs + n_packs // _NEAR_ENOUGH:
            break
    if best is None:
        return None
    packs = np.empty(len(tokens), np.int64)
    packs[order] = best
    return packs


def _differs(values: Int64[np.ndarray, "n"]) -> np.ndarray:
    """Where a value is another than the one before it."""
    return np.concatenate([[True], values[1:] != values[:-1]])
