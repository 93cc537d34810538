"""Packs documents under two budgets, tokens and images, into few packs."""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64

from packer_service.plan.first_fit import first_fit
from packer_service.plan.kinds import kinds_of
from schemas.errors import PlanError


def lower_bound(
    tokens: Int64[np.ndarray, "docs"], images: Int64[np.ndarray, "docs"], *, seq_len: int, max_images: int | None
) -> int:
    """Packs that no plan can do without: the larger of what the tokens and what the images need."""
    needed = max(-(-int(tokens.sum()) // seq_len), int(len(tokens) > 0))
    total_images = int(images.sum())
    return needed if not max_images or not total_images else max(needed, -(-total_images // max_images))


def pack_documents(
    tokens: Int64[np.ndarray, "docs"],
    images: Int64[np.ndarray, "docs"],
    *,
    seq_len: int,
    max_images: int | None,
) -> Int64[np.ndarray, "docs"]:
    """The pack of each document, so that no pack holds more than ``seq_len`` tokens or ``max_images`` images.

    Args:
        tokens: tokens that each document takes up, its alignment included.
        images: images of each document.
        seq_len: tokens of a pack.
        max_images: images that a pack may hold; None for no limit.

    Returns:
        Pack numbers from 0, without gaps. The same input gives the same packs everywhere.

    Raises:
        PlanError: a budget is not positive, a size is negative, or a document alone is above a budget.
    """
    tokens, images = np.asarray(tokens, np.int64), np.asarray(images, np.int64)
    _check_budgets(tokens, images, seq_len, max_images)
    if not len(tokens):
        return np.zeros(0, np.int64)
    image_limit = int(images.sum()) if max_images is None else max_images
    kinds = kinds_of(tokens, images)
    packs = np.empty(len(tokens), np.int64)
    packs[kinds.documents] = first_fit(kinds.tokens, kinds.images, kinds.count, seq_len, image_limit)
    return packs


def _check_budgets(tokens: np.ndarray, images: np.ndarray, seq_len: int, max_images: int | None) -> None:
    if len(tokens) != len(images):
        raise PlanError(
            f"{len(tokens)} documents have tokens but {len(images)} have images; give one of each a document"
        )
    if seq_len < 1:
        raise PlanError(f"seq_len is {seq_len}; a pack needs room for at least 1 token")
    if max_images is not None and max_images < 0:
        raise PlanError(f"max_images is {max_images}; give 0 or more, or none for no limit")
    _check_sizes(tokens, seq_len, "tokens", "raise seq_len, or leave the document out")
    _check_sizes(images, max_images, "images", "raise max_images, or leave the document out")


def _check_sizes(sizes: np.ndarray, limit: int | None, unit: str, remedy: str) -> None:
    if (sizes < 0).any():
        index = int(np.flatnonzero(sizes < 0)[0])
        raise PlanError(f"document {index} has {sizes[index]} {unit}; a count cannot be negative")
    if limit is not None and (sizes > limit).any():
        index = int(np.flatnonzero(sizes > limit)[0])
        raise PlanError(f"document {index} has {sizes[index]} {unit}, a pack holds at most {limit}; {remedy}")
