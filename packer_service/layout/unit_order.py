"""The order in which a pack stores its units, so that consecutive shares are even at all CP sizes at once.

Features are sent to the ranks of their tokens in any case, so units need not lie in the order of these. Units are dealt
to as many bins as the largest CP size has ranks, largest first, each to the bin of least load (Graham 1969, LPT); bins
are dealt in the same way, equally many to each rank of the next smaller size that divides, and so on. A rank's share at
every such size is then consecutive. Exchanges of two units that make no size worse, drawn at random, mend what is left,
and find the way at sizes that do not divide each other.

An order counts by its imbalances, summed over the sizes: at each, the least possible largest load of consecutive units,
over the mean. At no size may it be worse than the order of tokens, and it must save more than it costs to send features
further.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Int64

from preshard.packer_service.layout.deals import next_random, remainder
from preshard.packer_service.numerics import ONE, compiled
from preshard.schemas.boundaries import image_edges, smallest_limit

MOST_WORK = 1_000_000
"""Bound of a search's work, in units that are looked at: about two milliseconds."""

WORSE = -1
"""Score of an order that is worse than that of tokens at some size."""


def balanced_order(
    loads: Int64[np.ndarray, "units"], cp_sizes: Sequence[int], *, price: int = 0
) -> Int64[np.ndarray, "units"]:
    """The unit, counted in the order of tokens, that is stored at each place.

    Args:
        loads: the encoder's work for each unit, in the order of tokens; integers that are not negative.
        cp_sizes: numbers of ranks that share the units.
        price: what a rank could do while all features of the pack are sent. An order other than that of tokens must
            save that much of the largest load, on average over the sizes and times each.

    Returns:
        A permutation; the order of tokens where no other is better by more than the price. Between places where a
        share of any of the sizes ends, units ascend.
    """
    in_tokens = np.arange(len(loads))
    sizes = np.array(sorted(size for size in cp_sizes if size > 1), np.int64)
    unit = int(np.gcd.reduce(loads)) if len(loads) else 0
    if not unit or not len(sizes) or (loads == loads[0]).all():
        return in_tokens
    loads = loads // unit
    allowed = np.array([smallest_limit(loads.tolist(), size) for size in sizes.tolist()], np.int64)
    bound = int((np.maximum(loads.max(), -(-loads.sum() // sizes)) * sizes).sum())
    started = [in_tokens, *(_nested(loads, chain) for chain in _chains(sizes.tolist()))]
    scores = [int(_score(loads[order], sizes, allowed)) for order in started]
    _, best = min((score, number) for number, score in enumerate(scores) if score != WORSE)
    order = started[best].copy()
    score = int(_mend(order, loads, sizes, allowed, bound, MOST_WORK))
    if (scores[0] - score) * unit <= price * len(sizes):
        return in_tokens
    edges = np.unique(np.concatenate([image_edges(loads[order], size) for size in sizes.tolist()]))
    return np.concatenate([np.sort(part) for part in np.split(order, edges[1:-1])])


def _chains(sizes: list[int]) -> list[list[int]]:
    """Chain from each size down: the next smaller one that divides it, and so on."""
    chains = []
    for largest in sizes[::-1]:
        chain = [largest]
        for size in sizes[::-1]:
            if size < chain[-1] and chain[-1] % size == 0:
                chain.append(size)
        chains.append(chain)
    return chains


def _nested(loads: Int64[np.ndarray, "units"], chain: list[int]) -> Int64[np.ndarray, "units"]:
    """Units by the bins of each size, those of the smallest size first; inside the bins of the largest they ascend."""
    bins = [_largest_first(loads, chain[0], len(loads))]
    for larger, size in pairwise(chain):
        weights = np.zeros(larger, np.int64)
        np.add.at(weights, bins[-1], loads)
        bins.append(_largest_first(weights, size, larger // size)[bins[-1]])
    return np.lexsort(bins)


@compiled
def _largest_first(loads: np.ndarray, bins: int, room: int) -> np.ndarray:
    """The bin of each load, at most ``room`` in one."""
    sums, counts = np.zeros(bins, np.int64), np.zeros(bins, np.int64)
    found = np.empty(len(loads), np.int64)
    for item in np.argsort(-loads, kind="mergesort"):
        lightest = -1
        for place in range(bins):
            if counts[place] < room and (lightest < 0 or sums[place] < sums[lightest]):
                lightest = place
        found[item] = lightest
        sums[lightest] += loads[item]
        counts[lightest] += 1
    return found


@compiled
def _limit(loads: np.ndarray, ranks: int) -> np.int64:
    """Compiled form of :func:`preshard.schemas.boundaries.smallest_limit`."""
    total, largest = loads.sum(), loads.max()
    even = (total + ranks - 1) // ranks
    low, high = max(largest, even), max(largest, min(total, even + largest))
    while low < high:
        middle, parts, held = (low + high) // 2, 1, np.int64(0)
        for load in loads:
            held += load
            if held > middle:
                parts += 1
                held = load
        if parts <= ranks:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def _score(loads: np.ndarray, sizes: np.ndarray, allowed: np.ndarray) -> np.int64:
    """Largest loads times their sizes, summed; :data:`WORSE` where one is larger than allowed."""
    total = np.int64(0)
    for number in range(len(sizes)):
        limit = _limit(loads, sizes[number])
        if limit > allowed[number]:
            return np.int64(WORSE)
        total += limit * sizes[number]
    return total


@compiled
def _mend(
    order: np.ndarray, loads: np.ndarray, sizes: np.ndarray, allowed: np.ndarray, bound: int, most_work: int
) -> np.int64:
    """Exchanges units of ``order`` while that does not raise its score, which it returns.

    Exchanges that change nothing are taken, too: the next one may.
    """
    stored = loads[order]
    best, state, work = _score(stored, sizes, allowed), np.uint64(ONE), 0
    while best > bound and work < most_work:
        state = next_random(state)
        first = remainder(np.int64(state >> np.uint64(8)), len(order))
        second = remainder(np.int64(state >> np.uint64(32)), len(order))
        work += 1
        if stored[first] == stored[second]:
            continue
        stored[first], stored[second] = stored[second], stored[first]
        score = _score(stored, sizes, allowed)
        work += 8 * len(sizes) * len(order)
        if score != WORSE and score <= best:
            best = score
            order[first], order[second] = order[second], order[first]
        else:
            stored[first], stored[second] = stored[second], stored[first]
    return best
