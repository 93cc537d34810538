"""What packing documents would give, from their lengths alone; the balance comes from a sample of packs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Int64

from packer_service.layout.cost import key_weight
from packer_service.layout.mask import MaskIndex
from packer_service.layout.tiles import whole_tiles
from packer_service.packs.balance import BalanceRows
from packer_service.packs.boundaries import image_boundaries
from packer_service.packs.pack import configured_layouts
from packer_service.plan.cost import causal_area
from packer_service.plan.make import plan_documents
from packer_service.plan.order import check_dp_sizes
from packer_service.plan.plan import Plan
from packer_service.report.figures import BalanceFigures, Figures, loss_figures, plan_figures, truncated_by_source
from schemas.config import PackConfig
from schemas.errors import ConfigError
from schemas.rejects import rejects_table
from schemas.sequence import CAUSAL_ONLY, PADDING_DOC, MaskArrays
from schemas.tables import BALANCE

SAMPLED_PACKS = 8
"""Packs whose layouts are solved for the balance figures, spread evenly over the plan."""

LENGTHS = ("doc_id", "tokens", "images")

SampledPack = tuple[int, int, pa.Table]
"""A pack's id, its attention tiles, and its rows of balance.parquet."""


def plan_lengths(file: Path, config: PackConfig, dp_sizes: Sequence[int] = ()) -> Figures:
    """The figures of packing documents of which only lengths are known; images lie evenly in their documents.

    Raises:
        ConfigError: the file is missing, no Parquet, or lacks a column, or a length is null or negative.
        PlanError: a data-parallel size does not divide the window.
    """
    check_dp_sizes(dp_sizes, config.order.window)
    return plan_table(_read_lengths(file), config, dp_sizes)


def plan_table(table: pa.Table, config: PackConfig, dp_sizes: Sequence[int] = ()) -> Figures:
    """The same of a table: ``doc_id`` and ``source`` string, ``tokens`` and ``images`` int64 from 0, without nulls.

    Raises:
        PlanError: a data-parallel size does not divide the window.
    """
    check_dp_sizes(dp_sizes, config.order.window)
    kept, rejects = _within_budgets(table, config)
    images = kept["images"].to_numpy()
    started = time.perf_counter()
    tokens = kept["tokens"].to_numpy()
    plan = plan_documents(tokens=tokens, images=images, areas=causal_area(tokens), config=config)
    seconds = time.perf_counter() - started
    sampled = [_solve_lengths(plan, pack, images, config) for pack in sampled_packs(plan)]
    figures = planned_figures(plan, images, sampled, config, seconds, dp_sizes)
    packed = pc.count_distinct(kept["doc_id"]).as_py() or 0
    lost = loss_figures(rejects, truncated_by_source(kept, "truncated"))
    return {**figures, **lost, "source_documents": len(table), "documents": packed, "rejected": len(rejects)}


def sampled_packs(plan: Plan) -> list[int]:
    """Ids of the packs whose layouts are solved."""
    return np.unique(np.linspace(0, plan.n_packs - 1, SAMPLED_PACKS).astype(int)).tolist() if plan.n_packs else []


def planned_figures(
    plan: Plan,
    images: Int64[np.ndarray, "measured"],
    sampled: Sequence[SampledPack],
    config: PackConfig,
    seconds: float,
    dp_sizes: Sequence[int],
) -> Figures:
    """The figures of a plan, with the balance of the packs whose layouts were solved.

    Args:
        plan: the plan.
        images: crops of each measured document.
        sampled: the packs of :func:`sampled_packs`, solved.
        config: the job's configuration.
        seconds: time that planning took.
        dp_sizes: data-parallel sizes to give the straggler ratio of.
    """
    tiles = {pack: number for pack, number, _ in sampled}
    balance = BalanceFigures(seq_len=config.seq_len, tiles=tiles, key_weight=key_weight(config.cost))
    balance.add(pa.concat_tables([BALANCE.empty_table(), *(rows for _, _, rows in sampled)]).unify_dictionaries())
    return {
        **plan_figures(plan, images, config, dp_sizes),
        "plan_seconds": round(seconds, 3),
        "balanced_packs": len(sampled),
        **balance.as_json(),
    }


def _solve_lengths(plan: Plan, pack: int, images: Int64[np.ndarray, "docs"], config: PackConfig) -> SampledPack:
    """One planned pack with a mask made up from lengths."""
    rows = plan.rows(pack)
    starts, lengths = plan.start[rows], plan.length[rows]
    crops = images[plan.document[rows]]
    index = MaskIndex.of(_mask_of_lengths(starts, lengths, crops, config))
    layouts = configured_layouts(index, starts, plan.aligned_length[rows], config)
    units = np.arange(1, int(crops.sum()) + 1)
    balance = BalanceRows()
    boundaries = image_boundaries(units, units * config.vision.pooled_per_crop, config.cp_sizes)
    balance.add_pack(pack, index, layouts, boundaries)
    return pack, whole_tiles(index), balance.table()


def _mask_of_lengths(
    starts: Int64[np.ndarray, "docs"],
    lengths: Int64[np.ndarray, "docs"],
    crops: Int64[np.ndarray, "docs"],
    config: PackConfig,
) -> MaskArrays:
    doc_ids = np.full(config.seq_len, PADDING_DOC, np.int32)
    group_ids = np.full(config.seq_len, CAUSAL_ONLY, np.int32)
    unit = 0
    for number, (start, length, n) in enumerate(zip(starts, lengths, crops, strict=True)):
        doc_ids[start : start + length] = number
        for i in range(n):
            at = start + i * length // n
            size = min(config.vision.pooled_per_crop, length // n)
            if config.bidirectional != "none":
                group_ids[at : at + size] = number if config.bidirectional == "image_tokens" else unit
            unit += 1
    return MaskArrays(doc_ids=doc_ids, branch_ids=np.zeros_like(doc_ids), group_ids=group_ids)


def _read_lengths(file: Path) -> pa.Table:
    try:
        table = pq.read_table(file)
    except FileNotFoundError:
        raise ConfigError(f"--lengths {file}: no such file") from None
    except (OSError, pa.ArrowException) as error:
        raise ConfigError(f"--lengths {file}: is no Parquet file ({' '.join(str(error).split())[:100]})") from None
    missing = [name for name in LENGTHS if name not in table.column_names]
    if missing:
        raise ConfigError(f"--lengths {file}: lacks the column {', '.join(missing)}; it takes {', '.join(LENGTHS)}")
    try:
        columns = {name: pc.cast(table[name], pa.int64()).combine_chunks() for name in ("tokens", "images")}
        columns["doc_id"] = pc.cast(table["doc_id"], pa.string()).combine_chunks()
    except pa.ArrowException as error:
        raise ConfigError(f"--lengths {file}: {' '.join(str(error).split())[:200]}; lengths are integers") from None
    for name in ("tokens", "images"):
        if columns[name].null_count or (len(table) and pc.min(columns[name]).as_py() < 0):
            raise ConfigError(f"--lengths {file}: {name} holds a null or negative value; give integers from 0")
    source = table["source"] if "source" in table.column_names else pa.nulls(len(table), pa.string())
    columns["source"] = pc.fill_null(pc.cast(source, pa.string()), "default")
    return pa.table(columns)


def _within_budgets(table: pa.Table, config: PackConfig) -> tuple[pa.Table, pa.Table]:
    """Documents as they can be packed, with what each loses, and those that cannot."""
    tokens, images = table["tokens"].to_numpy(), table["images"].to_numpy()
    max_images = np.iinfo(np.int64).max if config.max_images is None else config.max_images
    code = np.select(
        [tokens == 0, tokens > config.seq_len, images > max_images], ["empty", "too_long", "too_many_images"], ""
    )
    rejected = code == "empty" if config.oversize != "reject" else code != ""
    pieces = np.ones(len(table), np.int64)
    if config.oversize == "split":
        pieces = np.maximum(-(-tokens // config.seq_len), -(-images // max_images)).clip(1)
    fitting = np.repeat(np.flatnonzero(~rejected), pieces[~rejected])
    number = np.arange(len(fitting)) - np.searchsorted(fitting, fitting)
    share = [(column[fitting] + number) // pieces[fitting] for column in (tokens, images)]
    kept_tokens, kept_images = np.minimum(share[0], config.seq_len), np.minimum(share[1], max_images)
    kept = table.take(pa.array(fitting)).select(["doc_id", "source"])
    kept = kept.append_column("tokens", pa.array(kept_tokens)).append_column("images", pa.array(kept_images))
    lost = table.filter(pa.array(rejected))
    rejects = rejects_table(
        len(lost),
        doc_id=lost["doc_id"],
        source=lost["source"],
        location=None,
        stage="plan",
        code=pa.array(code[rejected], pa.string()),
        message=None,
    )
    return kept.append_column("truncated", pa.array(share[0] - kept_tokens)), rejects
