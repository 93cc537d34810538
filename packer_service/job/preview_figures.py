"""The figures of a plan that lies in a folder: sums of its partitions, one of which is in memory at a time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from preshard.packer_service.job.plan import Planned
from preshard.packer_service.report.fill import PlanTotals
from preshard.packer_service.report.losses import losses_of
from preshard.packer_service.report.records import PlanReport
from preshard.packer_service.report.what_if import SampledPack, plan_report
from preshard.schemas.config import PackConfig


def planned_report(
    planned: Planned, sampled: Sequence[SampledPack], config: PackConfig, *, dp_sizes: Sequence[int], seconds: float
) -> PlanReport:
    """The figures of a plan.

    Args:
        planned: the plan.
        sampled: some of its packs, solved.
        config: the job's configuration.
        dp_sizes: data-parallel sizes to give the straggler ratio for.
        seconds: time that planning took.
    """
    parts, truncated = planned.partitions, Counter[str]()
    for part in parts:
        truncated.update(part.truncated)
    documents = sum(part.n_documents for part in parts)
    totals = PlanTotals(
        documents=planned.n_documents,
        tokens=sum(part.tokens for part in parts),
        aligned=sum(part.aligned for part in parts),
        images=sum(part.images for part in parts),
        patches=sum(part.patches for part in parts),
    )
    return plan_report(
        totals,
        planned.costs(),
        sampled,
        config,
        dp_sizes=dp_sizes,
        seconds=seconds,
        source_documents=planned.n_rows,
        documents=documents,
        rejected=planned.n_rejected,
        numbered=planned.n_numbered,
        lost=losses_of(planned.rejects(), dict(truncated)),
        mixture=planned.mixture,
        limit=planned.limit,
    )
