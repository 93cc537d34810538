"""First-fit decreasing with two budgets, filled pack by pack.

Giving each pack in turn the largest documents that still fit yields the packs of first-fit decreasing (Johnson 1973),
document for document: what does not fit into the first pack now will not fit later, since its free space only
shrinks. Filled this way the index lies over the documents, which only become fewer, and needs no ordered set of packs.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64
from numba import njit

from packer_service.plan.search_tree import GONE, build_tree, first_at_most, set_value


@njit(cache=True)
def _first_at_most_descending(values: Int64[np.ndarray, "n"], limit: int) -> int:
    low, high = 0, len(values)
    while low < high:
        middle = (low + high) // 2
        if values[middle] <= limit:
            high = middle
        else:
            low = middle + 1
    return low


@njit(cache=True)
def first_fit(
    keys: Int64[np.ndarray, "kinds"],
    others: Int64[np.ndarray, "kinds"],
    count: Int64[np.ndarray, "kinds"],
    key_limit: int,
    other_limit: int,
) -> Int64[np.ndarray, "docs"]:
    """Packs kinds of documents, the largest by ``keys`` first.

    Args:
        keys: size in the budget that documents are sorted by, descending, each at most ``key_limit``.
        others: size in the other budget, each at most ``other_limit``.
        count: documents of each kind, each at least 1.
        key_limit: the budget of ``keys``.
        other_limit: the budget of ``others``.

    Returns:
        The pack of each document, kind after kind; packs are counted from 0 in the order in which they were opened.
    """
    remaining = count.copy()
    next_row = np.cumsum(count) - count
    tree = build_tree(others)
    packs = np.empty(count.sum(), np.int64)
    left, pack = len(packs), 0
    while left:
        free_key, free_other, kind = key_limit, other_limit, -1
        while True:
            kind = first_at_most(tree, max(kind, _first_at_most_descending(keys, free_key)), free_other)
            if kind < 0:
                break
            take = remaining[kind]
            if keys[kind]:
                take = min(take, free_key // keys[kind])
            if others[kind]:
                take = min(take, free_other // others[kind])
            packs[next_row[kind] : next_row[kind] + take] = pack
            next_row[kind] += take
            remaining[kind] -= take
            left -= take
            free_key -= take * keys[kind]
            free_other -= take * others[kind]
            if not remaining[kind]:
                set_value(tree, kind, GONE)
        pack += 1
    return packs
