"""Documents of equal (tokens, images) are interchangeable: pack kinds of documents, then name the documents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from preshard.packer_service.numerics import compiled


@dataclass(frozen=True, kw_only=True, slots=True)
class Kinds:
    """The distinct (tokens, images) of a set of documents, by tokens descending, then images descending.

    Tokens and images are divided by their greatest common divisors, and so are the budgets, rounded down: what fits
    stays the same, and an index over free tokens is shorter by the alignment.

    Attributes:
        tokens: size of each kind in the first budget.
        images: size of each kind in the second budget.
        count: documents of each kind, at least 1.
        documents: document indices, kind after kind, ascending inside a kind.
        max_tokens: the first budget, at most the sum of all tokens, since an index over free tokens is that long.
        max_images: the second budget, at most the sum of all images.
    """

    tokens: Int64[np.ndarray, "kinds"]
    images: Int64[np.ndarray, "kinds"]
    count: Int64[np.ndarray, "kinds"]
    documents: Int64[np.ndarray, "docs"]
    max_tokens: int
    max_images: int


def kinds_of(
    tokens: Int64[np.ndarray, "docs"], images: Int64[np.ndarray, "docs"], *, seq_len: int, max_images: int | None
) -> Kinds:
    """Groups documents by (tokens, images).

    The kinds depend only on the documents' sizes, and a kind's documents come in the order of their indices, so a
    packing of kinds breaks ties by document index.
    """
    order = sort_rows(images.max(initial=0) - images)
    order = order[sort_rows(tokens.max(initial=0) - tokens[order])]
    sorted_tokens, sorted_images = tokens[order], images[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (sorted_tokens[1:] != sorted_tokens[:-1]) | (sorted_images[1:] != sorted_images[:-1])
    first = np.flatnonzero(is_first)
    kind_tokens, kind_images = sorted_tokens[first], sorted_images[first]
    count = np.diff(first, append=len(order))
    total_tokens, total_images = int((kind_tokens * count).sum()), int((kind_images * count).sum())
    token_limit = min(seq_len, max(1, total_tokens))
    image_limit = total_images if max_images is None else min(max_images, total_images)
    per_token, per_image = _common_divisor(kind_tokens), _common_divisor(kind_images)
    return Kinds(
        tokens=kind_tokens // per_token,
        images=kind_images // per_image,
        count=count,
        documents=order,
        max_tokens=token_limit // per_token,
        max_images=image_limit // per_image,
    )


def lower_bound(kinds: Kinds) -> int:
    """Packs that every plan needs: the larger of what the tokens and what the images need."""
    if not len(kinds.count):
        return 0
    needed = max(1, -(-int((kinds.tokens * kinds.count).sum()) // kinds.max_tokens))
    if kinds.max_images:
        needed = max(needed, -(-int((kinds.images * kinds.count).sum()) // kinds.max_images))
    return needed


def sort_rows(values: Int64[np.ndarray, "rows"]) -> Int64[np.ndarray, "rows"]:
    """The rows by value, ascending, equal ones in their order: counted where values are not far above the rows.

    Args:
        values: 0 or more.
    """
    n_values = int(values.max(initial=0)) + 1
    if n_values > max(1 << 16, 4 * len(values)):
        return np.argsort(values, kind="stable")
    return _place_by_count(values, np.cumsum(np.bincount(values, minlength=n_values)))


@compiled
def _place_by_count(values: Int64[np.ndarray, "rows"], ends: Int64[np.ndarray, "values"]) -> Int64[np.ndarray, "rows"]:
    found = np.empty(len(values), np.int64)
    for row in range(len(values) - 1, -1, -1):
        ends[values[row]] -= 1
        found[ends[values[row]]] = row
    return found


def _common_divisor(values: Int64[np.ndarray, "n"]) -> int:
    return max(1, int(np.gcd.reduce(values, initial=0)))
