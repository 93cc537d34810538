"""Packs of several sources in which each source has its share, for no more packs than packing by size alone takes.

Packing by size alone puts documents of a kind together: packs of videos, and packs of what is left. The packs of a step
cost nearly the same, so whole steps would hold one source, and no order of steps mixes those evenly. Here a pack
begins with the largest document left, and what it and the packs before it lack of each source is owed:

- the source that is owed most gives the largest document that is not larger than what is owed;
- where no source has one, the source that is owed most gives the largest that fits.

What is owed passes on to the next pack, the idea of error diffusion (Floyd and Steinberg 1976), so documents larger
than their source's share of a pack come in turns. Large documents come first, so what is left for the last packs is
small and fills them well. Nothing here is random and every figure is an integer.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int, Int64

from preshard.packer_service.numerics import compiled
from preshard.packer_service.plan.best_fit import GONE, build_tree, first_at_most, set_value
from preshard.packer_service.plan.blend import STRETCH, source_columns
from preshard.packer_service.plan.kinds import sort_rows
from preshard.schemas.dataset.step_order import mix64


@compiled
def _largest(
    tree: Int64[np.ndarray, "nodes"],
    tokens: Int64[np.ndarray, "kinds"],
    begin: int,
    end: int,
    max_tokens: int,
    max_images: int,
) -> int:
    """The kind in ``begin:end`` with the most tokens that keeps both limits and is in stock; -1 when there is none."""
    low, high = begin, end
    while low < high:  # tokens descend
        middle = (low + high) // 2
        if tokens[middle] <= max_tokens:
            high = middle
        else:
            low = middle + 1
    found = first_at_most(tree, low, max_images)
    return found if found < end else -1


@compiled
def _sort(by_owed: Int64[np.ndarray, "sources"], owed: Int64[np.ndarray, "sources"]) -> None:
    """Sorts sources by what they are owed, descending, and equal ones by their number.

    By insertion, since only one source has another place after each document; and NumPy's sort takes Numba 3 s to
    compile, on each machine anew.
    """
    for place in range(1, len(by_owed)):
        source, at = by_owed[place], place
        while at > 0:
            before = by_owed[at - 1]
            if owed[before] > owed[source] or (owed[before] == owed[source] and before < source):
                break
            by_owed[at] = before
            at -= 1
        by_owed[at] = source


@compiled
def _next_kind(
    tree: Int64[np.ndarray, "nodes"],
    tokens: Int64[np.ndarray, "kinds"],
    edges: Int64[np.ndarray, "sources_plus_1"],
    by_owed: Int64[np.ndarray, "sources"],
    owed: Int64[np.ndarray, "sources"],
    free_tokens: int,
    free_images: int,
) -> int:
    """The document that comes next into a pack; -1 when none fits."""
    for source in by_owed:
        limit = min(owed[source], free_tokens)
        if limit <= 0:
            break
        kind = _largest(tree, tokens, edges[source], edges[source + 1], limit, free_images)
        if kind >= 0:
            return kind
    for source in by_owed:
        kind = _largest(tree, tokens, edges[source], edges[source + 1], free_tokens, free_images)
        if kind >= 0:
            return kind
    return -1


@compiled
def even_fit(
    tokens: Int64[np.ndarray, "kinds"],
    images: Int64[np.ndarray, "kinds"],
    count: Int64[np.ndarray, "kinds"],
    edges: Int64[np.ndarray, "sources_plus_1"],
    by_size: Int64[np.ndarray, "kinds"],
    max_tokens: int,
    max_images: int,
    n_packs: int,
) -> Int64[np.ndarray, "docs"]:
    """The pack of each document, kind after kind.

    Args:
        tokens: tokens of each kind, at least 1 and at most ``max_tokens``; those of a source lie together and descend.
        images: images of each kind, each at most ``max_images``.
        count: documents of each kind.
        edges: the first kind of each source, then the number of kinds.
        by_size: kinds by the share that they take of their larger budget, descending: what packs begin with.
        max_tokens: the first budget.
        max_images: the second budget.
        n_packs: packs over which the sources are spread. What does not fit into so many gets further packs.

    Returns:
        Pack numbers from 0, in the order in which the packs were filled.
    """
    n_sources = len(edges) - 1
    stock, next_row, n_documents = count.copy(), np.empty(len(count), np.int64), 0
    for kind in range(len(count)):
        next_row[kind] = n_documents
        n_documents += count[kind]
    packs = np.empty(n_documents, np.int64)
    tree = build_tree(images)
    left, owed, by_owed = np.zeros(n_sources, np.int64), np.zeros(n_sources, np.int64), np.empty(n_sources, np.int64)
    source_of = np.empty(len(tokens), np.int64)
    for source in range(n_sources):
        by_owed[source] = source
        for kind in range(edges[source], edges[source + 1]):
            source_of[kind] = source
            left[source] += tokens[kind] * count[kind]
    n_packed, pack, largest = 0, 0, 0
    while n_packed < len(packs):
        while not stock[by_size[largest]]:
            largest += 1
        kind = by_size[largest]
        free_tokens, free_images = max_tokens, max_images
        for source in range(n_sources):
            more = -(-left[source] // max(1, n_packs - pack))
            # Never more than a pack: documents that fill packs alone would keep their source waiting for long.
            owed[source] = min(max(owed[source] + more, -max_tokens), max_tokens)
        while kind >= 0:
            packs[next_row[kind]] = pack
            next_row[kind] += 1
            n_packed += 1
            stock[kind] -= 1
            if not stock[kind]:
                set_value(tree, kind, GONE)
            source = source_of[kind]
            owed[source] -= tokens[kind]
            left[source] -= tokens[kind]
            free_tokens -= tokens[kind]
            free_images -= images[kind]
            _sort(by_owed, owed)
            kind = _next_kind(tree, tokens, edges, by_owed, owed, free_tokens, free_images)
        pack += 1
    return packs


_NEAR_ENOUGH = 4000
"""A packing with one pack more in this many is taken as it is."""

_ENOUGH = 1000
"""Tolerance for packings that were tried: the one with the fewest packs is taken up to one pack more in this many."""

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
    order = np.argsort(mix64(mix64(np.arange(len(tokens), dtype=np.uint64)) + np.uint64(salt % 2**64)), kind="stable")
    for sizes in (images.max(initial=0) - images, tokens.max(initial=0) - tokens, columns):
        order = order[sort_rows(sizes[order])]
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
    """Places where a value differs from the one before it."""
    return np.concatenate([[True], values[1:] != values[:-1]])
