"""Choice of the documents that share a pack, by a seed: unlike ones where sizes allow it, for no more packs.

Packing by size alone gathers documents of one length, and always the same ones. Here documents of more than half a pack
come first, then most others in random order, each into the fullest pack that has room; the smallest come last, from
large to small, and fill what is open. As few of them wait as do for no more packs. Where both budgets bind, that would
take more packs: then a packing is kept as it is, but for documents of like size, which change places.

Nothing here is random but by the seed's hash, and every figure is an integer.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Int64

from preshard.packer_service.numerics import compiled
from preshard.packer_service.plan.best_fit import best_fit
from preshard.packer_service.plan.kinds import Kinds, lower_bound
from preshard.schemas.dataset.step_order import mix64

_NEAR_ENOUGH = 10_000
"""One pack more in this many is no more packs."""

_WAITING = ((32, 512), (8, 128), (4, 32))
"""The smallest documents wait, up to one part in so many of all sizes, and count as less by up to so many parts in
1,024 of their own, so that others of them meet. Tried in this order."""

_HOPELESS = 500
"""Limit on extra packs: when one pack more in this many is not enough, sizes do not fit together in random order."""

_LIKE = 256
"""Range of like sizes: the documents that follow in order of size, up to one in so many of all or 64. Nearer ones are
tried after those further away."""


def pack_by_salt(
    kinds: Kinds, fewest: Callable[[Kinds], Int64[np.ndarray, "docs"]], salt: int
) -> Int64[np.ndarray, "docs"]:
    """A packing in which the salt chooses which documents share a pack.

    Args:
        kinds: the documents by size, at least one.
        fewest: finds a packing of few packs; called only where a random order needs more packs than the lower bound.
        salt: chooses the neighbours.

    Returns:
        The pack of each document, in the order of ``kinds.documents``. It has no more packs than ``fewest`` finds, but
        for one in 10,000.
    """
    drawn = _draw(len(kinds.documents), salt)
    needed, tried = lower_bound(kinds), []
    for part, less in _WAITING:
        tried.append(_in_random_order(kinds, part, less, drawn))
        n_packs = int(tried[-1].max()) + 1
        if n_packs <= needed + needed // _NEAR_ENOUGH:
            return tried[-1]
        if n_packs > needed + needed // _HOPELESS + 1:
            break
    found = fewest(kinds)
    most = int(found.max()) + 1
    for packs in tried:
        if packs.max() < most + most // _NEAR_ENOUGH:
            return packs
    tokens, images = (np.repeat(sizes, kinds.count) for sizes in (kinds.tokens, kinds.images))
    _exchange(found, tokens, images, drawn, kinds.max_tokens, kinds.max_images)
    return found


def _draw(n: int, salt: int) -> Int64[np.ndarray, "n"]:
    numbers = mix64(mix64(np.arange(n, dtype=np.uint64)) + np.uint64(salt % 2**64))
    return (numbers >> np.uint64(1)).astype(np.int64)


def _in_random_order(kinds: Kinds, part: int, less: int, drawn: Int64[np.ndarray, "docs"]) -> Int64[np.ndarray, "docs"]:
    """Best fit with all but the largest and the smallest documents in random order."""
    order = _random_order(kinds, part, less, drawn)
    tokens, images = (np.repeat(sizes, kinds.count)[order] for sizes in (kinds.tokens, kinds.images))
    packs = np.empty(len(order), np.int64)
    packs[order] = best_fit(tokens, images, np.ones(len(order), np.int64), kinds.max_tokens, kinds.max_images)
    return packs


def _random_order(kinds: Kinds, part: int, less: int, drawn: Int64[np.ndarray, "docs"]) -> Int64[np.ndarray, "docs"]:
    # Shares of a pack in 2**-30, so that the sum over many documents stays in 64 bits.
    share = np.maximum(
        (kinds.tokens << 30) // max(1, kinds.max_tokens), (kinds.images << 30) // max(1, kinds.max_images)
    )
    smallest = np.argsort(share, kind="stable")
    sums = np.cumsum((share * kinds.count)[smallest])
    place = np.empty(len(share), np.int8)
    place[:] = np.where(share > 1 << 29, 0, 1)
    place[smallest[sums <= sums[-1] // part]] = 2
    of_document = np.repeat(place, kinds.count)
    largest, random, waiting = (np.flatnonzero(of_document == number) for number in range(3))
    _shuffle(random, drawn)
    counted = np.repeat(share, kinds.count)[waiting] * (1024 - drawn[waiting] % less)
    waiting = waiting[np.argsort(-counted, kind="stable")]
    return np.concatenate([largest, random, waiting])


@compiled
def _shuffle(values: Int64[np.ndarray, "some"], drawn: Int64[np.ndarray, "docs"]) -> None:
    """Shuffles in place (Fisher and Yates 1938; Durstenfeld 1964)."""
    for last in range(len(values) - 1, 0, -1):
        other = drawn[last] % (last + 1)
        values[last], values[other] = values[other], values[last]


@compiled
def _exchange(
    packs: Int64[np.ndarray, "docs"],
    tokens: Int64[np.ndarray, "docs"],
    images: Int64[np.ndarray, "docs"],
    drawn: Int64[np.ndarray, "docs"],
    max_tokens: int,
    max_images: int,
) -> None:
    """Exchanges documents of like size, in place, where both packs have room: each with one at most."""
    n_documents, n_packs = len(packs), packs.max() + 1
    free_tokens, free_images = np.full(n_packs, max_tokens), np.full(n_packs, max_images)
    for document in range(n_documents):
        free_tokens[packs[document]] -= tokens[document]
        free_images[packs[document]] -= images[document]
    for one in range(n_documents):
        like = max(64, n_documents // _LIKE)
        while like:
            other = min(one + 1 + drawn[one] % like, n_documents - 1)
            a, b = packs[one], packs[other]
            more_tokens, more_images = tokens[one] - tokens[other], images[one] - images[other]
            if (
                a != b
                and free_tokens[a] + more_tokens >= 0 and free_tokens[b] >= more_tokens
                and free_images[a] + more_images >= 0 and free_images[b] >= more_images
            ):  # fmt: skip
                packs[one], packs[other] = b, a
                free_tokens[a] += more_tokens
                free_tokens[b] -= more_tokens
                free_images[a] += more_images
                free_images[b] -= more_images
                break
            like //= 2
