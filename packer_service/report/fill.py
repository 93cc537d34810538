"""How full the packs of a plan are, what the rest is lost to, and how even its steps are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64, Int64

from packer_service.plan.order import check_dp_sizes, check_window, straggler_ratio, window_sizes
from packer_service.plan.plan import Plan
from packer_service.report.figures import PlanFill

_PERCENTILES = (0, 5, 50, 95, 100)


def plan_fill(
    plan: Plan,
    *,
    images: Int64[np.ndarray, "measured"],
    max_images: int | None,
    window: int,
    dp_sizes: Sequence[int] = (),
    patches: Int64[np.ndarray, "measured"] | None = None,
    max_patches: int | None = None,
) -> PlanFill:
    """The fill of a plan's packs.

    Args:
        plan: the plan.
        images: crops of each measured document, as they were given to the plan.
        max_images: crops that a pack may hold; None for no limit.
        window: packs per group of nearly equal cost.
        dp_sizes: data-parallel sizes to give the straggler ratio for; by default the powers of two that divide the
            window.
        patches: patches of each measured document, where they are limited.
        max_patches: patches that a pack may hold; None for no limit.

    Raises:
        PlanError: ``window`` is not a positive integer, or a data-parallel size does not divide it.
    """
    check_window(window)
    check_dp_sizes(dp_sizes, window)
    sizes = dp_sizes or [size for size in window_sizes(window) if size & (size - 1) == 0]
    tokens, aligned = int(plan.length.sum()), int(plan.aligned_length.sum())
    for_tokens = -(-aligned // plan.seq_len)
    for_images = -(-int(images[plan.document].sum()) // max_images) if max_images else 0
    for_patches = -(-int(patches[plan.document].sum()) // max_patches) if max_patches and patches is not None else 0
    needed = max(for_tokens, for_images, for_patches)
    room = plan.n_packs * plan.seq_len
    return PlanFill(
        seq_len=plan.seq_len,
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
        packs_for_patches=for_patches,
        straggler_ratio={size: straggler_ratio(plan.cost, size) for size in sizes},
        cost_percentiles=_percentiles(plan.cost),
    )


def _percentiles(cost: Float64[np.ndarray, "packs"]) -> dict[int, float]:
    ordered = np.sort(cost)
    return {p: float(ordered[(len(ordered) - 1) * p // 100]) for p in _PERCENTILES if len(ordered)}


def plan_as_written(
    *,
    seq_len: int,
    cost: Float64[np.ndarray, "packs"],
    pack_ids: Int64[np.ndarray, "docs"],
    start: Int64[np.ndarray, "docs"],
    length: Int64[np.ndarray, "docs"],
    aligned_length: Int64[np.ndarray, "docs"],
) -> Plan:
    """What a dataset holds, as the plan that would have produced it: columns of its documents in order of packs."""
    return Plan(
        seq_len=seq_len,
        document=np.arange(len(pack_ids)),
        start=start,
        length=length,
        aligned_length=aligned_length,
        cost=cost,
        pack_edges=np.searchsorted(pack_ids, np.arange(len(cost) + 1)),
    )
