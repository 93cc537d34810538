"""Documents of equal (tokens, images) are interchangeable: pack kinds of documents, then name the documents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64


@dataclass(frozen=True, kw_only=True, slots=True)
class Kinds:
    """The distinct (tokens, images) of a set of documents, by tokens descending, then images descending.

    Attributes:
        tokens: aligned tokens of each kind.
        images: images of each kind.
        count: documents of each kind.
        documents: document indices, kind after kind, ascending inside a kind.
    """

    tokens: Int64[np.ndarray, "kinds"]
    images: Int64[np.ndarray, "kinds"]
    count: Int64[np.ndarray, "kinds"]
    documents: Int64[np.ndarray, "docs"]


def kinds_of(tokens: Int64[np.ndarray, "docs"], images: Int64[np.ndarray, "docs"]) -> Kinds:
    """Groups documents by (tokens, images).

    The result depends on the documents' sizes and indices alone, so a plan made from it breaks ties by document index.
    """
    order = np.lexsort((-images, -tokens))
    sorted_tokens, sorted_images = tokens[order], images[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = (sorted_tokens[1:] != sorted_tokens[:-1]) | (sorted_images[1:] != sorted_images[:-1])
    first = np.flatnonzero(is_first)
    return Kinds(
        tokens=sorted_tokens[first],
        images=sorted_images[first],
        count=np.diff(first, append=len(order)),
        documents=order,
    )
