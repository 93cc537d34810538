"""The what-if figures of a plan: how full its packs are, what the rest is lost to, how even its steps are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64

from packer_service.plan.order import check_dp_sizes, check_window, straggler_ratio, window_sizes
from packer_service.plan.plan import Plan

_PERCENTILES = (0, 5, 50, 95, 100)


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanSummary:
    """Figures of a plan.

    Attributes:
        documents: documents in packs.
        packs: packs.
        tokens: real tokens.
        padding_tokens: all other tokens of the packs.
        fill: real tokens over all tokens of the packs; 0 without packs.
        padding: ``padding_tokens`` by cause. ``alignment``: after documents, up to a multiple of the alignment.
            ``image_budget``: whole packs that the images need beyond those that the tokens need. ``packing``: whole
            packs beyond both needs. ``remainder``: what keeps the tokens from filling a whole number of packs.
        packs_for_tokens: packs that the aligned tokens need at least.
        packs_for_images: packs that the images need at least.
        straggler_ratio: mean over steps of max cost over mean cost, by data-parallel size.
        cost_percentiles: cost of packs in GFLOP by percentile, each the cost of a pack that exists.
    """

    documents: int
    packs: int
    tokens: int
    padding_tokens: int
    fill: float
    padding: dict[str, int]
    packs_for_tokens: int
    packs_for_images: int
    straggler_ratio: dict[int, float]
    cost_percentiles: dict[int, float]


def summarise(
    plan: Plan,
    *,
    images: Int64[np.ndarray, "measured"],
    max_images: int | None,
    window: int,
    dp_sizes: Sequence[int] = (),
) -> PlanSummary:
    """The figures of a plan.

    Args:
        plan: the plan.
        images: images of each measured document, as they were given to the plan.
        max_images: images that a pack may hold; None for no limit.
        window: packs of a group of nearly equal cost.
        dp_sizes: data-parallel sizes to give the straggler ratio of; the powers of two among the window's divisors
            when there are none.

    Raises:
        PlanError: ``window`` is not a positive integer, or a data-parallel size does not divide it.
    """
    check_window(window)
    check_dp_sizes(dp_sizes, window)
    sizes = dp_sizes or [size for size in window_sizes(window) if size & (size - 1) == 0]
    tokens, aligned = int(plan.length.sum()), int(plan.aligned_length.sum())
    for_tokens = -(-aligned // plan.seq_len)
    for_images = -(-int(images[plan.document].sum()) // max_images) if max_images else 0
    needed = max(for_tokens, for_images)
    room = plan.n_packs * plan.seq_len
    ordered_cost = np.sort(plan.cost)
    return PlanSummary(
        documents=plan.n_documents,
        packs=plan.n_packs,
        tokens=tokens,
        padding_tokens=room - tokens,
        fill=tokens / room if room else 0.0,
        padding={
            "alignment": aligned - tokens,
            "image_budget": (needed - for_tokens) * plan.seq_len,
            "packing": (plan.n_packs - needed) * plan.seq_len,
            "remainder": for_tokens * plan.seq_len - aligned,
        },
        packs_for_tokens=for_tokens,
        packs_for_images=for_images,
        straggler_ratio={size: straggler_ratio(plan.cost, size) for size in sizes},
        cost_percentiles={p: float(ordered_cost[(plan.n_packs - 1) * p // 100]) for p in _PERCENTILES if plan.n_packs},
    )
