"""Documents of which only lengths are known: which of them can be packed, and how a pack of them looks."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa
from jaxtyping import Int64

from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.packs.measures import MeasureRows
from preshard.packer_service.packs.pack import configured_layouts, image_boundaries
from preshard.packer_service.plan.cost import CostModel
from preshard.schemas.config import PackConfig
from preshard.schemas.sequence import CAUSAL_ONLY, PADDING_DOC, MaskArrays

SAMPLED_PACKS = 8
"""Packs whose layouts are solved for the balance figures, spread evenly over the plan."""

SIZES = ("tokens", "images", "patches", "load")
"""Columns of a document's sizes that a plan needs."""

KEYS = ("doc_id", "source", "line")
"""Columns that say which document it is; ``line`` is known where the lengths come from a file."""

SampledPack: TypeAlias = pa.Table
"""A pack's rows of measures.parquet."""


def with_patches(table: pa.Table, config: PackConfig) -> pa.Table:
    """The table with the patches and loads of square crops, where it has none."""
    images = table["images"].to_numpy()
    each = {"patches": config.vision.patches_per_crop, "load": CostModel.of(config).vision_work_per_crop}
    for name, of_one in each.items():
        if name not in table.column_names:
            table = table.append_column(name, pa.array(images * of_one))
    return table


def sampled_packs(n_packs: int) -> list[int]:
    """Ids of the packs of a plan whose layouts are solved."""
    return np.unique(np.linspace(0, n_packs - 1, SAMPLED_PACKS).astype(int)).tolist() if n_packs else []


def solve_lengths(
    pack: int,
    starts: Int64[np.ndarray, "docs"],
    lengths: Int64[np.ndarray, "docs"],
    aligned_lengths: Int64[np.ndarray, "docs"],
    crops: Int64[np.ndarray, "docs"],
    config: PackConfig,
) -> SampledPack:
    """One planned pack, its mask made up from the places and crops of its documents."""
    index = MaskIndex.of(_mask_of_lengths(starts, lengths, crops, config))
    layouts = configured_layouts(index, starts, aligned_lengths, config)
    units = np.arange(1, int(crops.sum()) + 1)
    rows = MeasureRows()
    pooled = units * config.vision.pooled_per_crop
    loads = np.full_like(units, CostModel.of(config).vision_work_per_crop)
    boundaries = image_boundaries(loads, units, pooled, config.cp_sizes)
    rows.add_pack(pack, index, layouts, boundaries, units, loads)
    return rows.table()


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


def within_budgets(table: pa.Table, config: PackConfig) -> tuple[pa.Table, pa.Table]:
    """Documents as they can be packed, with :data:`KEYS` and what each loses, and those that cannot, with a code."""
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
    keys = [name for name in KEYS if name in table.column_names]
    kept = table.select(keys).take(pa.array(fitting)).append_column("piece", pa.array(number))
    for name in SIZES:
        kept = kept.append_column(name, pa.array(np.minimum(share[name], limits.get(name, unlimited))))
    before = table["truncated"].to_numpy() if "truncated" in table.column_names else np.zeros(len(table), np.int64)
    lost_before = np.where(number == 0, before[fitting], 0)
    cut = share["tokens"] - np.minimum(share["tokens"], config.seq_len)
    lost = table.select(keys).filter(pa.array(rejected)).append_column("code", pa.array(code[rejected], pa.string()))
    return kept.append_column("truncated", pa.array(cut + lost_before)), lost
