"""Fill of packs, what the rest is lost to, and how even steps are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64

from preshard.packer_service.plan.make import Plan
from preshard.packer_service.plan.order import check_dp_sizes, part_straggler, straggler_ratio, window_sizes
from preshard.packer_service.plan.records import FillLimit
from preshard.packer_service.report.records import PlanFill
from preshard.schemas.config import PackConfig

_PERCENTILES = (0, 5, 50, 95, 100)


class PlanTotals(NamedTuple):
    """Sums over the documents of a plan; ``aligned`` counts the tokens that they take up."""

    documents: int
    tokens: int
    aligned: int
    images: int
    patches: int


def plan_totals(
    plan: Plan, images: Int64[np.ndarray, "measured"], patches: Int64[np.ndarray, "measured"] | None = None
) -> PlanTotals:
    """The sums of a plan, from the crops and patches of each measured document."""
    return PlanTotals(
        documents=plan.n_documents,
        tokens=int(plan.length.sum()),
        aligned=int(plan.aligned_length.sum()),
        images=int(images[plan.document].sum()),
        patches=0 if patches is None else int(patches[plan.document].sum()),
    )


def fill_of(
    totals: PlanTotals,
    cost: Float64[np.ndarray, "packs"],
    config: PackConfig,
    *,
    dp_sizes: Sequence[int] = (),
    limit: FillLimit | None = None,
) -> PlanFill:
    """The fill of packs.

    Args:
        totals: sums over the documents.
        cost: of each pack, in step order.
        config: what they were packed with.
        dp_sizes: data-parallel sizes to give the straggler ratio for; by default the powers of two that divide the
            window. Sizes above the number of packs are left out.
        limit: what keeps the packs from being fuller.

    Raises:
        PlanError: a data-parallel size does not divide the window.
    """
    seq_len = config.seq_len
    tokens, aligned = totals.tokens, totals.aligned
    for_tokens = -(-aligned // seq_len)
    for_images = -(-totals.images // config.max_images) if config.max_images else 0
    for_patches = -(-totals.patches // config.max_patches) if config.max_patches else 0
    needed = max(for_tokens, for_images, for_patches)
    room = len(cost) * seq_len
    return PlanFill(
        seq_len=seq_len,
        documents=totals.documents,
        packs=len(cost),
        tokens=tokens,
        padding_tokens=room - tokens,
        fill=tokens / room if room else 0.0,
        limit=limit,
        padding={
            "alignment": aligned - tokens,
            "image_budget": (needed - for_tokens) * seq_len,
            "packing": (len(cost) - needed) * seq_len,
            "remainder": for_tokens * seq_len - aligned,
        },
        packs_for_tokens=for_tokens,
        packs_for_images=for_images,
        packs_for_patches=for_patches,
        straggler_ratio=straggler_ratios(cost, config, dp_sizes),
        cost_percentiles=_percentiles(cost),
    )


def straggler_ratios(
    cost: Float64[np.ndarray, "packs"], config: PackConfig, dp_sizes: Sequence[int]
) -> dict[int, float]:
    """Straggler ratios by data-parallel size: the arguments and errors are those of :func:`fill_of`."""
    return {size: straggler_ratio(cost, size) for size in _step_sizes(len(cost), config, dp_sizes)}


def encoder_stragglers(
    loads: Int64[np.ndarray, "packs"], config: PackConfig, dp_sizes: Sequence[int] = ()
) -> dict[int, float]:
    """Stragglers of the vision encoder's work alone, by data-parallel size; none where no pack has any.

    Raises:
        PlanError: a data-parallel size does not divide the window.
    """
    sizes = _step_sizes(len(loads), config, dp_sizes)
    return {size: part_straggler(loads.astype(np.float64), size) for size in sizes} if loads.any() else {}


def _step_sizes(n_packs: int, config: PackConfig, dp_sizes: Sequence[int]) -> list[int]:
    window = config.order.window
    check_dp_sizes(dp_sizes, window)
    sizes = dp_sizes or [size for size in window_sizes(window) if size & (size - 1) == 0]
    return [size for size in sizes if size <= n_packs]  # fewer packs than ranks are no step


def _percentiles(cost: Float64[np.ndarray, "packs"]) -> dict[int, float]:
    ordered = np.sort(cost)
    return {p: float(ordered[(len(ordered) - 1) * p // 100]) for p in _PERCENTILES if len(ordered)}
