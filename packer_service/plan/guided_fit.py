"""Guided fit: fills one pack after the other so that both of its budgets run out together.

Best fit looks at one budget. Where both bind, it fills the first packs with whatever is large, and what remains suits
no pack: videos that use up the images and leave tokens open, or text that does the opposite. The remedy is the idea
behind the dot-product heuristics for vector packing (Panigrahy et al. 2011, "Heuristics for vector bin packing"), with
an index in place of their scan over all documents:

- a document *leans* to a budget when it takes a larger share of it than of the other;
- a pack begins with the largest document left;
- while the pack leans to one side, it gets the first document in the recipe's guide order that leans to the other
  side by no more than the pack does, so that both budgets fill up in step;
- where there is none, it gets the first document in the recipe's finish order that fits;
- each pack is filled by several recipes, and the filling that leaves the least open is kept.

Nothing here is random and every figure is an integer.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from preshard.packer_service.numerics import ZERO, compiled
from preshard.packer_service.plan.best_fit import GONE

UNGUIDED = -1
"""Guide order of a recipe that only takes the largest document that fits: first-fit decreasing."""

_PATIENCE = 256
"""Nodes that one search may visit. A search with several limits can meet many nodes whose minima come from different
documents; giving up loses one choice of many, while continuing could visit every document."""

_FULL = 4096
"""A filling that leaves less than one part in this many open is kept without trying the recipes that follow."""


@compiled
def _set_leaf(tree: Int64[np.ndarray, "nodes 3"], position: int, tokens: int, images: int, lean: int) -> None:
    node = len(tree) // 2 + position
    tree[node, 0], tree[node, 1], tree[node, 2] = tokens, images, lean
    node >>= 1
    while node:
        changed = False
        for column in range(3):
            smallest = min(tree[2 * node, column], tree[2 * node + 1, column])
            changed |= smallest != tree[node, column]
            tree[node, column] = smallest
        if not changed:
            return
        node >>= 1


@compiled
def _build_trees(
    orders: Int64[np.ndarray, "orders kinds"],
    tokens: Int64[np.ndarray, "kinds"],
    images: Int64[np.ndarray, "kinds"],
    lean: Int64[np.ndarray, "kinds"],
) -> Int64[np.ndarray, "orders nodes 3"]:
    size = 1
    while size < orders.shape[1]:
        size *= 2
    trees = np.empty((len(orders), 2 * size, 3), np.int64)
    for order in range(len(orders)):
        for node in range(2 * size):
            for column in range(3):
                trees[order, node, column] = GONE
        for position in range(orders.shape[1]):
            kind = orders[order, position]
            trees[order, size + position, 0] = tokens[kind]
            trees[order, size + position, 1] = images[kind]
            trees[order, size + position, 2] = abs(lean[kind])
        for node in range(size - 1, 0, -1):
            for column in range(3):
                trees[order, node, column] = min(trees[order, 2 * node, column], trees[order, 2 * node + 1, column])
    return trees


@compiled
def _first_within(tree: Int64[np.ndarray, "nodes 3"], position: int, tokens: int, images: int, lean: int) -> int:
    """The first position at or after ``position`` that keeps all three limits; -1 when none is found."""
    size = len(tree) // 2
    if position >= size:
        return -1
    node = size + position
    for _ in range(_PATIENCE):
        if tree[node, 0] <= tokens and tree[node, 1] <= images and tree[node, 2] <= lean:
            if node >= size:
                return node - size
            node *= 2
        else:
            while node & 1:
                node >>= 1
            if node == 0:
                return -1
            node += 1
    return -1


@compiled
def _first_in_stock(
    tree: Int64[np.ndarray, "nodes 3"],
    order: Int64[np.ndarray, "kinds"],
    begin: int,
    end: int,
    stock: Int64[np.ndarray, "kinds"],
    tokens: int,
    images: int,
    lean: int,
) -> int:
    """The first kind of ``order[begin:end]`` that keeps the limits and is in stock; -1 when none is found."""
    position = begin
    while True:
        position = _first_within(tree, position, tokens, images, lean)
        if position < 0 or position >= end:
            return -1
        if stock[order[position]]:
            return order[position]
        # This pack used it up; the trees still hold what the pack before it left.
        position += 1


@compiled
def _fill(
    kind: int,
    recipe: Int64[np.ndarray, "2"],
    tokens: Int64[np.ndarray, "kinds"],
    images: Int64[np.ndarray, "kinds"],
    lean: Int64[np.ndarray, "kinds"],
    stock: Int64[np.ndarray, "kinds"],
    orders: Int64[np.ndarray, "orders kinds"],
    trees: Int64[np.ndarray, "orders nodes 3"],
    n_image_leaning: int,
    free_tokens: int,
    free_images: int,
    chosen: Int64[np.ndarray, "most"],
) -> tuple[int, int, int]:
    """Fills a pack that begins with ``kind``, taking from ``stock``. Returns documents taken, and what stays free."""
    guide, finish = recipe[0], recipe[1]
    n_chosen, pack_lean = 0, 0
    while kind >= 0:
        stock[kind] -= 1
        chosen[n_chosen] = kind
        n_chosen += 1
        free_tokens -= tokens[kind]
        free_images -= images[kind]
        pack_lean += lean[kind]
        kind = -1
        if guide != UNGUIDED and pack_lean != 0:
            begin, end = (0, n_image_leaning) if pack_lean > 0 else (n_image_leaning, len(tokens))
            kind = _first_in_stock(
                trees[guide], orders[guide], begin, end, stock, free_tokens, free_images, abs(pack_lean)
            )
        if kind < 0:
            kind = _first_in_stock(
                trees[finish], orders[finish], ZERO, len(tokens), stock, free_tokens, free_images, GONE - 1
            )
    return n_chosen, free_tokens, free_images


@compiled
def guided_fit(
    tokens: Int64[np.ndarray, "kinds"],
    images: Int64[np.ndarray, "kinds"],
    lean: Int64[np.ndarray, "kinds"],
    count: Int64[np.ndarray, "kinds"],
    orders: Int64[np.ndarray, "orders kinds"],
    by_size: Int64[np.ndarray, "kinds"],
    recipes: Int64[np.ndarray, "recipes 2"],
    max_tokens: int,
    max_images: int,
    token_weight: int,
    image_weight: int,
    most_documents: int,
) -> Int64[np.ndarray, "docs"]:
    """The pack of each document, kind after kind.

    Args:
        tokens: tokens of each kind, each at most ``max_tokens``.
        images: images of each kind, each at most ``max_images``.
        lean: ``tokens * max_images - images * max_tokens`` of each kind: positive leans to tokens.
        count: documents of each kind.
        orders: kinds in the orders that recipes name. Guide orders begin with all kinds that lean to images.
        by_size: kinds by the share that they take of their larger budget, descending: what packs begin with.
        recipes: rows (guide order or :data:`UNGUIDED`, finish order).
        max_tokens: the first budget.
        max_images: the second budget.
        token_weight: what a free token counts when fillings are compared.
        image_weight: what a free image counts.
        most_documents: no pack can hold more documents than this.

    Returns:
        Pack numbers from 0, in the order in which the packs were filled.
    """
    n_kinds = len(tokens)
    n_image_leaning = ZERO
    positions = np.empty_like(orders)
    for kind in range(n_kinds):
        n_image_leaning += lean[kind] < 0
        for order in range(len(orders)):
            positions[order, orders[order, kind]] = kind
    trees = _build_trees(orders, tokens, images, lean)
    stock, next_row, n_documents = count.copy(), np.empty(n_kinds, np.int64), 0
    for kind in range(n_kinds):
        next_row[kind] = n_documents
        n_documents += count[kind]
    packs = np.empty(n_documents, np.int64)
    fillings = np.empty((len(recipes), most_documents), np.int64)
    nearly_full = (max_tokens * token_weight + max_images * image_weight) // _FULL
    n_packed, n_packs, largest = 0, 0, 0
    while n_packed < len(packs):
        while not stock[by_size[largest]]:
            largest += 1
        best, best_open, n_best = -1, GONE, 0
        for recipe in range(len(recipes)):
            n_chosen, free_tokens, free_images = _fill(
                by_size[largest], recipes[recipe], tokens, images, lean, stock, orders, trees, n_image_leaning,
                max_tokens, max_images, fillings[recipe],
            )  # fmt: skip
            for kind in fillings[recipe, :n_chosen]:
                stock[kind] += 1
            left_open = free_tokens * token_weight + free_images * image_weight
            if left_open < best_open:
                best, best_open, n_best = recipe, left_open, n_chosen
            if left_open <= nearly_full:
                break
        for kind in fillings[best, :n_best]:
            packs[next_row[kind]] = n_packs
            next_row[kind] += 1
            stock[kind] -= 1
            if not stock[kind]:
                for order in range(len(orders)):
                    _set_leaf(trees[order], positions[order, kind], GONE, GONE, GONE)
        n_packed += n_best
        n_packs += 1
    return packs
