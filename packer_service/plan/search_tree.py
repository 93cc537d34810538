"""A tree of minima over a row of integers: the first position at or after p whose value is at most a limit.

Reading and writing cost the logarithm of the row's length. The tree is one flat array of ``2 * size`` entries, ``size``
a power of two: node i has the children 2i and 2i + 1, and position p is the leaf ``size + p``.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from preshard.packer_service.numerics.compiled import compiled

GONE = np.iinfo(np.int64).max
"""Value of a position that is empty: no limit reaches it."""


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
