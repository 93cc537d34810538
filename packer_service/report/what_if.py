"""What packing documents would give, from their lengths alone; the balance is that of a sample of packs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from jaxtyping import Int64

from packer_service.layout.mask import MaskIndex
from packer_service.layout.tiles import whole_tiles
from packer_service.packs.balance import BalanceRows
from packer_service.packs.boundaries import image_boundaries
from packer_service.packs.pack import configured_layouts
from packer_service.plan.cost import CostModel, causal_area
from packer_service.plan.make import plan_documents
from packer_service.plan.order import check_dp_sizes
from packer_service.plan.plan import Plan
from packer_service.report.balance import balances
from packer_service.report.figures import Balances, Losses, Mixture, PlanReport
from packer_service.report.fill import plan_fill
from packer_service.report.loads import Block, block_of, numbers_of
from packer_service.report.losses import losses
from packer_service.report.mixture import take_mixture
from schemas.balance import BalanceOrder, LoadGroup
from schemas.config import PackConfig
from schemas.document_ids import canonical_order, hash_ids
from schemas.errors import ConfigError
from schemas.rejects import rejects_table
from schemas.sequence import CAUSAL_ONLY, PADDING_DOC, MaskArrays

SAMPLED_PACKS = 8
"""Packs whose layouts are solved for the balance figures, spread evenly over the plan."""

LENGTHS = ("doc_id", "tokens", "images")

SIZES = ("tokens", "images", "patches", "load")
"""Columns of a document's sizes that a plan needs."""

SampledPack = tuple[int, int, pa.Table]
"""A pack's id, its attention tiles, and its rows of balance.parquet."""


def plan_lengths(file: Path, config: PackConfig, dp_sizes: Sequence[int] = ()) -> PlanReport:
    """The figures of packing documents of which only lengths are known; images are spread evenly over a document.

    Raises:
        ConfigError: the file is missing, is not Parquet or lacks a column, or a length is null or negative.
        PlanError: a data-parallel size does not divide the window.
    """
    check_dp_sizes(dp_sizes, config.order.window)
    return plan_table(_read_lengths(file), config, dp_sizes)


def plan_table(table: pa.Table, config: PackConfig, dp_sizes: Sequence[int] = ()) -> PlanReport:
    """The same for a table: ``doc_id`` and ``source`` string, ``tokens`` and ``images`` int64 from 0, without nulls.

    ``patches`` and ``load`` (the vision encoder's work) may be given, too, else they are those of square crops; and
    ``truncated``, tokens that documents have lost before.

    Raises:
        PlanError: a data-parallel size does not divide the window.
    """
    check_dp_sizes(dp_sizes, config.order.window)
    known = set(table["source"].unique().to_pylist())
    fitting, rejects = _within_budgets(_in_canonical_order(_with_patches(table, config)), config)
    kept, mixture = take_mixture(fitting, config, rejected_sources=known)
    columns = {name: kept[name].to_numpy() for name in (*SIZES, "source_number", "pass_number", "epoch")}
    images = columns["images"]
    columns["area"] = causal_area(columns["tokens"])
    started = time.perf_counter()
    plan = plan_documents(columns, config)
    seconds = time.perf_counter() - started
    sampled = [solve_lengths(plan, pack, images, config) for pack in sampled_packs(plan)]
    return plan_report(
        plan,
        images,
        sampled,
        config,
        dp_sizes=dp_sizes,
        seconds=seconds,
        source_documents=len(table),
        documents=pc.count_distinct(kept["doc_id"]).as_py() or 0,
        rejected=len(rejects),
        mixture=mixture,
        lost=losses(rejects, kept, "truncated"),
        patches=columns["patches"],
    )


def _in_canonical_order(table: pa.Table) -> pa.Table:
    hashes = hash_ids(table["doc_id"])
    order = canonical_order(hashes, table["doc_id"], np.zeros(len(table), np.int64))
    return table.append_column("id_hash", pa.array(hashes)).take(pa.array(order))


def _with_patches(table: pa.Table, config: PackConfig) -> pa.Table:
    """The table with the patches and loads of square crops, where it has none."""
    images = table["images"].to_numpy()
    each = {"patches": config.vision.patches_per_crop, "load": CostModel.of(config).vision_work_per_crop}
    for name, of_one in each.items():
        if name not in table.column_names:
            table = table.append_column(name, pa.array(images * of_one))
    return table


def sampled_packs(plan: Plan) -> list[int]:
    """Ids of the packs whose layouts are solved."""
    return np.unique(np.linspace(0, plan.n_packs - 1, SAMPLED_PACKS).astype(int)).tolist() if plan.n_packs else []


def plan_report(
    plan: Plan,
    images: Int64[np.ndarray, "measured"],
    sampled: Sequence[SampledPack],
    config: PackConfig,
    *,
    dp_sizes: Sequence[int],
    seconds: float,
    source_documents: int,
    documents: int,
    rejected: int,
    lost: Losses,
    mixture: Mixture,
    patches: Int64[np.ndarray, "measured"],
) -> PlanReport:
    """The figures of a plan, with the balance of the packs whose layouts were solved.

    Args:
        plan: the plan.
        images: crops of each measured document.
        sampled: the packs of :func:`sampled_packs`, solved.
        config: the job's configuration.
        dp_sizes: data-parallel sizes to give the straggler ratio for.
        seconds: time that planning took.
        source_documents: documents of the source.
        documents: those of them that are packed, however many pieces each has.
        rejected: those of them that are not.
        lost: what is lost.
        mixture: what each source got.
        patches: patches of each measured document.
    """
    fill = plan_fill(
        plan,
        images=images,
        max_images=config.max_images,
        patches=patches,
        max_patches=config.max_patches,
        window=config.order.window,
        dp_sizes=dp_sizes,
    )
    found = [fill, lost, mixture, _sample_balances(sampled, config)]
    return PlanReport(
        **{name: value for figures in found for name, value in figures if name != "documents"},
        source_documents=source_documents,
        documents=documents,
        rejected=rejected,
        plan_seconds=round(seconds, 3),
    )


def _sample_balances(sampled: Sequence[SampledPack], config: PackConfig) -> Balances:
    order = BalanceOrder.of(config, len(sampled))
    parts = order.by_table(rows for _, _, rows in sampled)
    blocks: dict[LoadGroup, list[Block]] = {}
    for stretch, part in zip(order.stretches(), parts, strict=True):
        blocks.setdefault(stretch.group, []).append(block_of(numbers_of(part["load"]), stretch))
    tiles = np.array([tiles for _, tiles, _ in sampled], np.int64)
    return balances(lambda group: blocks.get(group, []), tiles, config)


def solve_lengths(plan: Plan, pack: int, images: Int64[np.ndarray, "docs"], config: PackConfig) -> SampledPack:
    """One planned pack, its mask made up from lengths."""
    rows = plan.rows(pack)
    starts, lengths = plan.start[rows], plan.length[rows]
    crops = images[plan.document[rows]]
    index = MaskIndex.of(_mask_of_lengths(starts, lengths, crops, config))
    layouts = configured_layouts(index, starts, plan.aligned_length[rows], config)
    units = np.arange(1, int(crops.sum()) + 1)
    balance = BalanceRows()
    pooled = units * config.vision.pooled_per_crop
    loads = np.full_like(units, CostModel.of(config).vision_work_per_crop)
    boundaries = image_boundaries(loads, units, pooled, config.cp_sizes)
    balance.add_pack(pack, index, layouts, boundaries, units, loads)
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
        raise ConfigError(f"--lengths {file}: is not a Parquet file ({' '.join(str(error).split())[:100]})") from None
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
    sizes = {name: table[name].to_numpy() for name in SIZES}
    unlimited = np.iinfo(np.int64).max
    limits = {
        "tokens": config.seq_len,
        "images": unlimited if config.max_images is None else config.max_images,
        "patches": unlimited if config.max_patches is None else config.max_patches,
    }
    code = np.select(
        [sizes["tokens"] == 0, *(sizes[name] > limit for name, limit in limits.items())],
        ["empty", "too_long", "too_many_images", "too_many_patches"],
        "",
    )
    rejected = code == "empty" if config.oversize != "reject" else code != ""
    pieces = np.ones(len(table), np.int64)
    if config.oversize == "split":
        pieces = np.maximum.reduce([-(-sizes[name] // limit) for name, limit in limits.items()]).clip(1)
    fitting = np.repeat(np.flatnonzero(~rejected), pieces[~rejected])
    number = np.arange(len(fitting)) - np.searchsorted(fitting, fitting)
    share = {name: (column[fitting] + number) // pieces[fitting] for name, column in sizes.items()}
    kept = (
        table.take(pa.array(fitting)).select(["doc_id", "source", "id_hash"]).append_column("piece", pa.array(number))
    )
    for name in SIZES:
        kept = kept.append_column(name, pa.array(np.minimum(share[name], limits.get(name, unlimited))))
    before = table["truncated"].to_numpy() if "truncated" in table.column_names else np.zeros(len(table), np.int64)
    lost_before = np.where(number == 0, before[fitting], 0)
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
    cut = share["tokens"] - np.minimum(share["tokens"], config.seq_len)
    return kept.append_column("truncated", pa.array(cut + lost_before)), rejects
