"""Plain best-fit decreasing with two budgets: no plan may need more packs than this.

Documents go by tokens descending, each into the open pack with the least free tokens that has room in both budgets
(Johnson 1973, with the second budget as a side condition). As in the packing of one budget by Ding et al. 2024 ("Fewer
truncations improve language modeling") and Hugging Face TRL, the index is a tree over the amounts of free tokens; here
a leaf knows the most free images of its packs, and the packs of a leaf are a heap by free images.

The tree of minima finds the first position at or after p whose value is at most a limit, in the logarithm of the row's
length. It is one flat array of ``2 * size`` entries, ``size`` a power of two: node i has the children 2i and 2i + 1,
and position p is the leaf ``size + p``.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from preshard.packer_service.numerics import compiled

GONE = np.iinfo(np.int64).max
"""Value of a position that is empty: no limit reaches it."""


@compiled
def _merge(
    a: int,
    b: int,
    free_images: Int64[np.ndarray, "packs"],
    left: Int64[np.ndarray, "packs"],
    right: Int64[np.ndarray, "packs"],
) -> int:
    """Root of the union of two skew heaps (Sleator and Tarjan 1986), most free images on top; -1 is the empty heap."""
    if a < 0 or b < 0:
        return max(a, b)
    if free_images[b] > free_images[a]:
        a, b = b, a
    root = a
    while True:
        below = right[a]
        right[a] = left[a]
        if below < 0:
            left[a] = b
            return root
        if free_images[b] > free_images[below]:
            below, b = b, below
        left[a] = below
        a = below


@compiled
def best_fit(
    tokens: Int64[np.ndarray, "kinds"],
    images: Int64[np.ndarray, "kinds"],
    count: Int64[np.ndarray, "kinds"],
    max_tokens: int,
    max_images: int,
) -> Int64[np.ndarray, "docs"]:
    """The pack of each document, kind after kind, in the order in which kinds are given.

    Args:
        tokens: tokens of each kind, at least one kind and each at most ``max_tokens``. Descending, for best-fit
            decreasing.
        images: images of each kind, each at most ``max_images``.
        count: documents of each kind.
        max_tokens: the first budget; memory grows with it, by 24 bytes per token.
        max_images: the second budget.

    Returns:
        Pack numbers from 0, in the order in which the packs were opened.
    """
    n_documents = count.sum()
    packs = np.empty(n_documents, np.int64)
    free_images = np.empty(n_documents, np.int64)
    left, right = np.empty(n_documents, np.int64), np.empty(n_documents, np.int64)  # set when a pack is opened
    heaps = np.full(max_tokens + 1, -1, np.int64)
    # Values are free images negated, since the tree looks for small ones.
    tree = build_tree(np.full(max_tokens + 1, GONE, np.int64))
    row, opened, smallest = 0, 0, tokens.min()
    for kind in range(len(tokens)):
        for _ in range(count[kind]):
            free = first_at_most(tree, tokens[kind], -images[kind])
            if free < 0:
                pack, free = opened, max_tokens
                free_images[pack] = max_images
                left[pack] = right[pack] = -1
                opened += 1
            else:
                pack = heaps[free]
                heaps[free] = _merge(left[pack], right[pack], free_images, left, right)
                set_value(tree, free, GONE if heaps[free] < 0 else -free_images[heaps[free]])
                left[pack] = right[pack] = -1
            free -= tokens[kind]
            free_images[pack] -= images[kind]
            if free >= smallest:
                heaps[free] = _merge(heaps[free], pack, free_images, left, right)
                set_value(tree, free, -free_images[heaps[free]])
            packs[row] = pack
            row += 1
    return packs


@compiled
def build_tree(values: Int64[np.ndarray, "n"]) -> Int64[np.ndarray, "nodes"]:
    """The tree over ``values``, padded with :data:`GONE`."""
    size = 1
    while size < len(values):
        size *= 2
    tree = np.full(2 * size, GONE, np.int64)
    for position in range(len(values)):
        tree[size + position] = values[position]
    for node in range(size - 1, 0, -1):
        tree[node] = min(tree[2 * node], tree[2 * node + 1])
    return tree


@compiled
def set_value(tree: Int64[np.ndarray, "nodes"], position: int, value: int) -> None:
    """Sets one position's value and the minima above it."""
    node = len(tree) // 2 + position
    tree[node] = value
    node >>= 1
    while node:
        smallest = min(tree[2 * node], tree[2 * node + 1])
        if tree[node] == smallest:
            return
        tree[node] = smallest
        node >>= 1


@compiled
def first_at_most(tree: Int64[np.ndarray, "nodes"], position: int, limit: int) -> int:
    """The first position at or after ``position`` whose value is at most ``limit``; -1 when there is none."""
    size = len(tree) // 2
    if position >= size:
        return -1
    node = size + position
    while True:
        if tree[node] <= limit:
            if node >= size:
                return node - size
            node *= 2
        else:
            # Up from right children, then over to the next subtree; only the tree's right edge climbs to node 0.
            while node & 1:
                node >>= 1
            if node == 0:
                return -1
            node += 1
