"""An order of groups of packs in which every thousand packs hold each source in its share of all tokens.

First greedy herding (Welling 2009, "Herding dynamical weights to learn"): of some candidates the group comes next
after which the tokens of each source so far are nearest to their shares. Then groups of different stretches of a
thousand packs change places as long as that brings the stretches nearer to the shares, the local search of number
partitioning. What is searched is bounded, so the time grows with the number of groups alone. Groups come in shuffled
order, so the result is still a shuffle by the seed. Everything is counted in integers: the order is the same on every
machine.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Int, Int64

from preshard.packer_service.numerics import compiled

STRETCH = 1000
"""Packs of a stretch, counted from the first pack, that holds each source in its share."""

_CANDIDATES = 64
"""Groups that are compared before one is taken."""

_SOURCES = 32
"""Most sources that are told apart; the smallest of more count as one."""

_BLOCK = 512
"""Groups among which places are exchanged; neighbouring blocks overlap by half."""

_SWEEPS = 12
"""Most times that a block is gone through; it ends earlier when no exchange helps."""

_LARGEST = 1 << 28
"""Largest sum of a stretch's deviations, so that the sum of the squares of all its sources stays in 64 bits."""

_SMALL_WINDOW = 8
"""Groups of so few packs need no exchange: one more or less changes a stretch by less than a hundredth."""


def tokens_by_source(
    pack: Int64[np.ndarray, "docs"], source: Int[np.ndarray, "docs"], tokens: Int64[np.ndarray, "docs"], n_packs: int
) -> Int64[np.ndarray, "packs sources"]:
    """Tokens of each source in each pack.

    Args:
        pack: of each document.
        source: number of each document's source, from 0.
        tokens: of each document.
        n_packs: number of packs.
    """
    column = source_columns(source, tokens)
    n_sources = int(column.max(initial=0)) + 1
    sums = np.bincount(pack * n_sources + column, weights=tokens, minlength=n_packs * n_sources)
    return sums.astype(np.int64).reshape(n_packs, n_sources)


def source_columns(source: Int[np.ndarray, "docs"], tokens: Int64[np.ndarray, "docs"]) -> Int64[np.ndarray, "docs"]:
    """Sources that are told apart, numbered from the one with the most tokens; the smallest of more share a number."""
    by_size = np.argsort(-np.bincount(source, weights=tokens), kind="stable")
    column = np.full(len(by_size), min(len(by_size), _SOURCES) - 1)
    column[by_size[:_SOURCES]] = np.arange(min(len(by_size), _SOURCES))
    found: Int64[np.ndarray, "docs"] = column[source]
    return found


def blend_order(tokens: Int64[np.ndarray, "groups window sources"]) -> Int64[np.ndarray, "groups"]:
    """Orders groups so that sources are mixed evenly over the whole order.

    Args:
        tokens: tokens of each source in each pack of each group, groups and packs as they would stand.

    Returns:
        The groups, each once. In the given order without tokens of at least two sources.
    """
    n_groups, window, _ = tokens.shape
    used = tokens[:, :, tokens.any(axis=(0, 1))]
    if used.shape[2] < 2:
        return np.arange(n_groups)
    deviations = _deviations(used)
    whole = np.ascontiguousarray(deviations.sum(axis=1))  # the loops are compiled for one order of bytes
    order: Int64[np.ndarray, "groups"] = _herd(whole, _CANDIDATES)
    if window <= _SMALL_WINDOW:
        return order
    firsts = np.arange(n_groups) * window
    stretch = firsts // STRETCH
    before = np.minimum((stretch + 1) * STRETCH - firsts, window)  # packs that stand in the stretch of the first one
    parts = np.ascontiguousarray(np.cumsum(deviations[order], axis=1)[np.arange(n_groups), before - 1])
    _exchange(order, whole, parts, stretch, before == window, _BLOCK, _SWEEPS)
    _herd_stretches(order, whole, stretch, before == window)
    return order


def _deviations(tokens: Int64[np.ndarray, "groups window sources"]) -> Int64[np.ndarray, "groups window sources"]:
    """Excess of each source in a pack over the share of the source, in integers of a fixed scale."""
    by_source, of_pack = [int(total) for total in tokens.sum(axis=(0, 1))], tokens.sum(axis=2)
    total, most = max(1, sum(by_source)), max(1, int(of_pack.max(initial=1)))
    scale = _LARGEST // (2 * STRETCH)  # a stretch and the groups at its ends hold fewer than twice as many packs
    shares = np.array([source * scale // total for source in by_source], np.int64)
    return tokens * scale // most - of_pack[:, :, None] * shares // most


@compiled
def _largest_of_sum(
    so_far: Int64[np.ndarray, "sources"], deviations: Int64[np.ndarray, "groups sources"], group: int
) -> np.int64:
    """The largest deviation of a source, of either sign, once a group follows on what stands so far."""
    largest = np.int64(0)
    for source in range(len(so_far)):
        largest = max(largest, abs(so_far[source] + deviations[group, source]))
    return largest


@compiled
def _herd(deviations: Int64[np.ndarray, "groups sources"], n_candidates: int) -> Int64[np.ndarray, "groups"]:
    """The groups, one after the other the candidate after which the largest deviation is least; the first of equals."""
    n_groups, n_sources = deviations.shape
    order, so_far = np.empty(n_groups, np.int64), np.zeros(n_sources, np.int64)
    candidates = np.arange(min(n_candidates, n_groups))
    n_open, following = len(candidates), len(candidates)
    for place in range(n_groups):
        best, least = 0, np.int64(1 << 62)
        for i in range(n_open):
            worst = _largest_of_sum(so_far, deviations, candidates[i])
            if worst < least:
                best, least = i, worst
        order[place] = candidates[best]
        for source in range(n_sources):
            so_far[source] += deviations[candidates[best], source]
        if following < n_groups:
            candidates[best] = following
            following += 1
        else:
            n_open -= 1
            candidates[best] = candidates[n_open]
    return order


@compiled
def _exchange(
    order: Int64[np.ndarray, "groups"],
    whole: Int64[np.ndarray, "groups sources"],
    parts: Int64[np.ndarray, "groups sources"],
    stretch: Int64[np.ndarray, "groups"],
    is_inside: Bool[np.ndarray, "groups"],
    block: int,
    sweeps: int,
) -> None:
    """Exchanges groups of different stretches, in place, while the sum of the stretches' squared deviations falls.

    Args:
        order: the group at each place.
        whole: deviations of each group.
        parts: of the group at each place, deviations of its packs in the stretch of its first one.
        stretch: the stretch of the first pack at each place.
        is_inside: whether all packs at a place lie in one stretch; other groups stay where they are.
        block: places among which groups are exchanged.
        sweeps: most times that a block is gone through.
    """
    n_groups, n_sources = len(order), whole.shape[1]
    sums = np.zeros((stretch[-1] + 2, n_sources), np.int64)
    for place in range(n_groups):
        for source in range(n_sources):
            sums[stretch[place], source] += parts[place, source]
            sums[stretch[place] + 1, source] += whole[order[place], source] - parts[place, source]
    for start in range(0, n_groups, block // 2):
        end = min(start + block, n_groups)
        for _ in range(sweeps):
            changed = False
            for a in range(start, end):
                best, most = -1, np.int64(0)
                for b in range(start, end):
                    if is_inside[a] and is_inside[b] and stretch[a] != stretch[b]:
                        gain = np.int64(0)
                        for source in range(n_sources):
                            more = whole[order[b], source] - whole[order[a], source]
                            gain += more * (sums[stretch[b], source] - sums[stretch[a], source] - more)
                        if gain > most:
                            best, most = b, gain
                if best >= 0:
                    for source in range(n_sources):
                        more = whole[order[best], source] - whole[order[a], source]
                        sums[stretch[a], source] += more
                        sums[stretch[best], source] -= more
                    order[a], order[best] = order[best], order[a]
                    changed = True
            if not changed:
                break


@compiled
def _herd_stretches(
    order: Int64[np.ndarray, "groups"],
    whole: Int64[np.ndarray, "groups sources"],
    stretch: Int64[np.ndarray, "groups"],
    is_inside: Bool[np.ndarray, "groups"],
) -> None:
    """Orders the groups inside each stretch, in place, so that its parts are near the shares, too."""
    n_groups, n_sources = whole.shape
    so_far = np.zeros(n_sources, np.int64)
    for place in range(n_groups):
        best, least = place, np.int64(1 << 62)
        other = place
        while is_inside[place] and other < n_groups and is_inside[other] and stretch[other] == stretch[place]:
            worst = _largest_of_sum(so_far, whole, order[other])
            if worst < least:
                best, least = other, worst
            other += 1
        order[place], order[best] = order[best], order[place]
        for source in range(n_sources):
            so_far[source] += whole[order[place], source]
