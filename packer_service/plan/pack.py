"""Packs documents under two budgets, tokens and images (crops, patches, or both), into few packs."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from jaxtyping import Int, Int64

from preshard.packer_service.plan.best_fit import best_fit
from preshard.packer_service.plan.even_pack import even_packs
from preshard.packer_service.plan.guided_fit import UNGUIDED, guided_fit
from preshard.packer_service.plan.kinds import Kinds, kinds_of, lower_bound
from preshard.packer_service.plan.neighbours import pack_by_salt
from preshard.schemas.errors import PlanError

_TOKENS, _IMAGES, _SIZE, _LEAN = range(4)
"""Orders of kinds, by row: tokens, images, size, how much they lean."""

Recipes = tuple[tuple[int, int], ...]

_RECIPES: tuple[Recipes, ...] = (
    ((_SIZE, _IMAGES), (_SIZE, _TOKENS)),
    ((_SIZE, _IMAGES), (_SIZE, _TOKENS), (UNGUIDED, _TOKENS), (UNGUIDED, _IMAGES)),
    ((_LEAN, _IMAGES), (_LEAN, _TOKENS), (_SIZE, _IMAGES), (_SIZE, _TOKENS)),
)
"""Sets of recipes for guided fit. Which is best depends on how the two budgets bind."""

_SINGLE_RECIPES: tuple[Recipes, ...] = tuple(
    ((guide, finish),) for guide in (UNGUIDED, _SIZE, _LEAN) for finish in (_TOKENS, _IMAGES, _SIZE, _LEAN)
)
"""Recipes tried as well where one pack more or less is a matter of luck, as with few documents."""

_LEAN_CLASSES = 16
"""Classes of documents by how much they lean for their size, in the guide order by lean. Inside a class, those that
lean most come first."""

_NEAR_ENOUGH = 4000
"""Tolerance above ``_FEW`` documents: a packing within one pack in this many of the lower bound is taken as it is."""

_FEW = 200_000
"""Most documents for which every set of recipes is tried; of more, a sample of them chooses one set."""

_SAMPLE = 50_000
"""Documents of the sample that chooses a set of recipes: a quarter of those up to which every set is tried."""

_VERY_FEW = 20_000
"""Most documents for which the single recipes are tried, too."""

_LARGEST_BUDGET = 1 << 31
"""Most that a joint budget of images and patches may count, so that sums over many documents stay in 64 bits."""

_POWER = 8
"""Exponent by which a free token or image loses weight as its budget is used less: nine tenths count less than half."""

_BITS, _SHARE, _WHOLE = 10, 20, 60
"""Binary places of a budget's share, those that its power keeps, and the weight of a whole pack in either budget."""


def pack_documents(
    tokens: Int64[np.ndarray, "docs"],
    images: Int64[np.ndarray, "docs"],
    *,
    seq_len: int,
    max_images: int | None,
    patches: Int64[np.ndarray, "docs"] | None = None,
    max_patches: int | None = None,
    salt: int = 0,
    sources: Int[np.ndarray, "docs"] | None = None,
) -> Int64[np.ndarray, "docs"]:
    """The pack of each document, so that no pack holds more than ``seq_len`` tokens, ``max_images`` images or
    ``max_patches`` patches.

    Takes the first of several packings that is near enough to the lower bound, the larger of
    ``ceil(tokens / seq_len)`` and ``ceil(images / max_images)``: best fit in an order of the salt's (see
    :mod:`~preshard.packer_service.plan.neighbours`), then plain best-fit decreasing, than which no plan has more packs
    but for one in 10,000, then guided fit by several sets of recipes; otherwise the one with the fewest packs. Of a
    thousand packs or more, each then holds every source in its share, for at most one pack more in a thousand; see
    :mod:`~preshard.packer_service.plan.even_pack`.

    Args:
        tokens: tokens that each document takes up, including its alignment.
        images: images of each document.
        seq_len: tokens of a pack.
        max_images: images that a pack may hold; None for no limit.
        patches: patches of each document, where they are limited.
        max_patches: patches that a pack may hold; None for no limit.
        salt: chooses which documents share a pack.
        sources: number of each document's source; None for one.

    Returns:
        Pack numbers from 0, without gaps. They depend only on the arguments; the order of the documents decides nothing
        but which of several documents of equal size is which.

    Raises:
        PlanError: a budget or a size is negative, or a document alone is above a budget.
    """
    tokens, images = np.asarray(tokens, np.int64), np.asarray(images, np.int64)
    _check_budgets(tokens, images, seq_len, max_images)
    if max_patches is not None:
        images, max_images = _both_budgets(images, max_images, np.asarray(patches, np.int64), max_patches)
    packs = np.zeros(len(tokens), np.int64)
    if len(tokens):
        kinds = kinds_of(tokens, images, seq_len=seq_len, max_images=max_images)
        packs[kinds.documents] = pack_by_salt(kinds, fewest_packs, salt)
        del kinds
    if sources is None or not len(tokens):
        return packs
    n_packs = int(packs.max()) + 1
    even = even_packs(tokens, images, sources, max_tokens=seq_len, max_images=max_images, n_packs=n_packs, salt=salt)
    return packs if even is None else even


def fewest_packs(kinds: Kinds) -> Int64[np.ndarray, "docs"]:
    """The best packing found, documents kind after kind."""
    needed, few = lower_bound(kinds), len(kinds.documents) <= _FEW
    good = needed if few else needed + needed // _NEAR_ENOUGH
    best = best_fit(kinds.tokens, kinds.images, kinds.count, kinds.max_tokens, kinds.max_images)
    if best.max() < good or not _both_bind(kinds):
        return best
    for recipes in _recipes_for(kinds):
        packs = _fit_guided(kinds, recipes)
        if packs.max() < best.max():
            best = packs
        if best.max() < good:
            break
    return best


def _recipes_for(kinds: Kinds) -> Iterable[Recipes]:
    n_documents = len(kinds.documents)
    if n_documents > _FEW:
        return (_recipes_by_sample(kinds),)
    return _RECIPES if n_documents > _VERY_FEW else (*_RECIPES, *_SINGLE_RECIPES)


def _both_bind(kinds: Kinds) -> bool:
    """Whether there are more images than one pack may hold; otherwise only tokens limit a pack."""
    return int((kinds.images * kinds.count).sum()) > kinds.max_images


def _recipes_by_sample(kinds: Kinds) -> Recipes:
    """The set of recipes that packs an even sample of the documents best; the first of equals."""
    kind_of_row = np.repeat(np.arange(len(kinds.count)), kinds.count)
    drawn, count = np.unique(kind_of_row[:: len(kind_of_row) // _SAMPLE], return_counts=True)
    sample = replace(kinds, tokens=kinds.tokens[drawn], images=kinds.images[drawn], count=count)
    return min(_RECIPES, key=lambda recipes: int(_fit_guided(sample, recipes).max()))


def _fit_guided(kinds: Kinds, recipes: Recipes) -> Int64[np.ndarray, "docs"]:
    """Guided fit by one set of recipes."""
    tokens, images, max_tokens, max_images = kinds.tokens, kinds.images, kinds.max_tokens, kinds.max_images
    lean = tokens * max_images - images * max_tokens
    share = np.maximum(tokens * max_images, images * max_tokens)
    leans_to_tokens = lean >= 0
    # Documents that lean little come first: those that take from one budget alone suit any pack and are kept to the
    # end.
    lean_class = np.abs(lean) // np.maximum(1, (tokens * max_images + images * max_tokens) // _LEAN_CLASSES)
    orders = np.stack(
        [
            np.arange(len(tokens)),
            np.lexsort((-tokens, -images)),
            np.lexsort((-share, leans_to_tokens)),
            np.lexsort((-np.abs(lean), lean_class, leans_to_tokens)),
        ]
    )
    by_size = np.lexsort((-tokens, -share))
    token_weight, image_weight = _weights(kinds)
    return guided_fit(
        tokens, images, lean, kinds.count, orders, by_size, np.array(recipes, np.int64), max_tokens, max_images,
        token_weight, image_weight, _most_documents(kinds),
    )  # fmt: skip


def _weights(kinds: Kinds) -> tuple[int, int]:
    """Weights of a free token and a free image: a budget that the documents hardly use up may be left open.

    The share of a budget that is used at the lower bound, to the power :data:`_POWER`, over the budget. In integers:
    the share counts in ``2**-_BITS``, and a budget that is used up counts ``2**_WHOLE`` for a whole pack, so that the
    sum of both stays below 2**63.
    """
    needed = lower_bound(kinds)
    weights = []
    for sizes, budget in ((kinds.tokens, kinds.max_tokens), (kinds.images, kinds.max_images)):
        used = (int((sizes * kinds.count).sum()) << _BITS) // max(1, budget * needed)
        share = used**_POWER >> _BITS * _POWER - _SHARE
        weights.append((share << _WHOLE - _SHARE) // max(1, budget))
    return weights[0], weights[1]


def _most_documents(kinds: Kinds) -> int:
    """No pack holds more documents than fit when the smallest by tokens come first."""
    smallest_first = slice(None, None, -1)
    tokens, count = kinds.tokens[smallest_first], kinds.count[smallest_first]
    fits = np.cumsum(tokens * count) <= kinds.max_tokens
    whole = int(count[fits].sum())
    if fits.all():
        return whole
    room = kinds.max_tokens - int((tokens * count)[fits].sum())
    return whole + room // int(tokens[~fits][0])


def _both_budgets(
    images: Int64[np.ndarray, "docs"], max_images: int | None, patches: Int64[np.ndarray, "docs"], max_patches: int
) -> tuple[Int64[np.ndarray, "docs"], int]:
    """One budget that keeps both: of each document the larger of its shares in images and in patches.

    Shares count in the least common multiple of the two limits, or if that is too large in one that is rounded up, so
    that packs may be filled a little less but never too much. A pack could hold more where some of its documents lean
    to images and others to patches; with crops of one size, nothing is lost.
    """
    _check_sizes(patches, max_patches, "patches", "raise max_patches, or leave the document out")
    if max_images is None:
        return patches, max_patches
    whole = math.lcm(max(max_images, 1), max(max_patches, 1))
    if whole > _LARGEST_BUDGET:
        whole = _LARGEST_BUDGET // max(max_images, 1) * max(max_images, 1)
    shares = [-(-sizes * whole // max(limit, 1)) for sizes, limit in ((images, max_images), (patches, max_patches))]
    return np.maximum(*shares), whole


def _check_budgets(tokens: np.ndarray, images: np.ndarray, seq_len: int, max_images: int | None) -> None:
    if len(tokens) != len(images):
        raise PlanError(f"{len(tokens)} documents have tokens but {len(images)} have images; give both for each")
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
