"""Planned figures of packing documents, from their lengths alone; the balance is that of a sample of packs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float64, Int64

from preshard.packer_service.packs.lengths import (
    SIZES,
    SampledPack,
    sampled_packs,
    solve_lengths,
    with_patches,
    within_budgets,
)
from preshard.packer_service.plan.cost import causal_area
from preshard.packer_service.plan.limits import fill_limit
from preshard.packer_service.plan.make import Plan, plan_documents
from preshard.packer_service.plan.mixture import check_mixture, mixture_figures, take_mixture
from preshard.packer_service.plan.order import check_dp_sizes
from preshard.packer_service.plan.records import FillLimit, Mixture
from preshard.packer_service.report.fill import PlanTotals, fill_of, plan_totals
from preshard.packer_service.report.losses import losses_of
from preshard.packer_service.report.measures import SampledMeasures, all_balances
from preshard.packer_service.report.records import Losses, PlanReport
from preshard.schemas.config import PackConfig, parse_config
from preshard.schemas.dataset.document_ids import canonical_order, hash_ids
from preshard.schemas.dataset.measures import MEASURES
from preshard.schemas.errors import PreshardError
from preshard.schemas.tables import rejects_table


def planned(table: pa.Table, config: dict[str, Any], dp_sizes: Sequence[int]) -> dict[str, Any]:
    """The ``figures`` of :func:`plan_table` as JSON has them, or what is ``wrong`` with what was asked."""
    try:
        return {"figures": plan_table(table, parse_config(config), dp_sizes).model_dump(mode="json")}
    except PreshardError as error:
        return {"wrong": str(error)}


def plan_table(table: pa.Table, config: PackConfig, dp_sizes: Sequence[int] = ()) -> PlanReport:
    """The figures of packing documents of which only lengths are known; images are spread evenly over a document.

    The table has ``doc_id`` and ``source`` as strings, ``tokens`` and ``images`` as int64 from 0, without nulls.
    ``patches`` and ``load`` (the vision encoder's work) may be given, too, else they are those of square crops; and
    ``truncated``, tokens that documents have lost before.

    Raises:
        PlanError: a data-parallel size does not divide the window.
    """
    check_dp_sizes(dp_sizes, config.order.window)
    check_mixture(config, table["source"].unique().to_pylist())
    fitting, lost = within_budgets(with_patches(table, config), config)
    fitting = _in_canonical_order(fitting)
    names = sorted(fitting["source"].unique().to_pylist())
    columns = {name: fitting[name].to_numpy() for name in (*SIZES, "piece", "id_hash")}
    columns["source_number"] = pc.index_in(fitting["source"], pa.array(names, pa.string())).to_numpy().astype(np.int64)
    taken, totals = take_mixture(columns, config, names)
    kept = fitting.take(pa.array(taken.document))
    columns = taken.columns_of(columns)
    images = columns["images"]
    columns["area"] = causal_area(columns["tokens"])
    started = time.perf_counter()
    plan = plan_documents(columns, config)
    seconds = time.perf_counter() - started
    sums = PlanSums(
        totals=plan_totals(plan, images, columns["patches"]),
        cost=plan.cost,
        seconds=seconds,
        source_documents=len(table),
        documents=pc.count_distinct(kept["doc_id"]).as_py() or 0,
        rejected=len(lost),
        numbered=0,
        mixture=mixture_figures(totals, config, names),
        lost=losses_of([_rejects(lost)], _truncated_tokens(kept)),
        limit=fill_limit(columns, config, plan.n_packs),
    )
    sampled = [_solve_planned(plan, pack, images, config) for pack in sampled_packs(plan.n_packs)]
    return plan_report(sums, sampled, config, dp_sizes)


def _in_canonical_order(table: pa.Table) -> pa.Table:
    hashes = hash_ids(table["doc_id"])
    order = canonical_order(hashes, table["doc_id"], table["piece"].to_numpy())
    return table.append_column("id_hash", pa.array(hashes)).take(pa.array(order))


@dataclass(frozen=True, kw_only=True)
class PlanSums:
    """Sums over the documents and packs of a plan, whether it is in memory or in partitions.

    Attributes:
        totals: over its documents.
        cost: of each of its packs, in step order.
        seconds: time that planning took.
        source_documents: documents of the source.
        documents: those of them that are packed, however many pieces each has.
        rejected: those of them that are not.
        numbered: those of both that got a number behind their id.
        lost: what is lost.
        mixture: what each source got.
        limit: what keeps its packs from being fuller.
    """

    totals: PlanTotals
    cost: Float64[np.ndarray, "packs"]
    seconds: float
    source_documents: int
    documents: int
    rejected: int
    numbered: int
    lost: Losses
    mixture: Mixture
    limit: FillLimit | None


def plan_report(
    sums: PlanSums, sampled: Sequence[SampledPack], config: PackConfig, dp_sizes: Sequence[int]
) -> PlanReport:
    """The figures of a plan.

    Args:
        sums: over its documents and packs.
        sampled: the packs of :func:`sampled_packs`, solved; the balance is theirs.
        config: the job's configuration.
        dp_sizes: data-parallel sizes to give the straggler ratio for.
    """
    fill = fill_of(sums.totals, sums.cost, config, dp_sizes=dp_sizes, limit=sums.limit)
    found = [fill, sums.lost, sums.mixture, all_balances(sampled_measures(sampled, config))]
    return PlanReport(
        **{name: value for figures in found for name, value in figures if name != "documents"},
        source_documents=sums.source_documents,
        documents=sums.documents,
        rejected=sums.rejected,
        numbered=sums.numbered,
        plan_seconds=round(sums.seconds, 3),
    )


def sampled_measures(sampled: Sequence[SampledPack], config: PackConfig) -> SampledMeasures:
    """The measures of solved packs."""
    return SampledMeasures(config=config, rows=pa.concat_tables([MEASURES.empty_table(), *sampled]))


def _solve_planned(plan: Plan, pack: int, images: Int64[np.ndarray, "docs"], config: PackConfig) -> SampledPack:
    rows = plan.rows(pack)
    return solve_lengths(
        pack, plan.start[rows], plan.length[rows], plan.aligned_length[rows], images[plan.document[rows]], config
    )


def _truncated_tokens(kept: pa.Table) -> dict[str, int]:
    """Tokens that the documents of each source lose, where they lose any."""
    summed = kept.group_by("source", use_threads=False).aggregate([("truncated", "sum")]).to_pylist()
    return {row["source"]: row["truncated_sum"] for row in summed if row["truncated_sum"]}


def _rejects(lost: pa.Table) -> pa.Table:
    return rejects_table(
        len(lost),
        doc_id=lost["doc_id"],
        source=lost["source"],
        location=None,
        stage="plan",
        code=lost["code"],
        message=None,
    )
