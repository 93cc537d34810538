"""Balance of ranks: layouts side by side, over a dataset or a shard, and shards, the worst first."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query
from jaxtyping import Float64

from preshard.packer_service.http.answers.choice import check, choose, packs_of_shard, ranked
from preshard.packer_service.http.answers.measures import (
    image_balance,
    layout_balance,
    means_of_shards,
    measure_values,
    packs_of,
    preferred,
    shard_spreads,
    worst_of_shards,
    worst_packs,
)
from preshard.packer_service.http.answers.worst import explain_packs
from preshard.packer_service.http.dataset.reader import ServedDataset
from preshard.packer_service.http.models.balance import (
    Balance,
    Chosen,
    Measure,
    ShardBalance,
    ShardPage,
    ShardRow,
    WorstPack,
)
from preshard.packer_service.http.parameters import Cp, Layout, Paged, Ring, ShardName
from preshard.packer_service.http.problems import not_legal
from preshard.packer_service.http.service import DatasetRoute
from preshard.packer_service.report.figures import MEASURED
from preshard.packer_service.report.records import Spread
from preshard.schemas.manifest import ShardEntry

router = APIRouter(prefix="/v1/datasets/{name}", route_class=DatasetRoute)

WORST = 5
"""Packs of a shard that are explained: each is read from the shard, which takes some milliseconds."""


@router.get("/balance", tags=["balance"], summary="Layouts at all degrees side by side")
def balance(dataset: ServedDataset, layout: Layout = None, ring: Ring = None, cp: Cp = None) -> Balance:
    """Balance of the layouts, ring degrees and CP sizes asked for, or else of all."""
    return Balance(**_balance(dataset, layout, ring, cp, None), shard=None)


@router.get("/shards/{shard}/balance", tags=["balance"], summary="The same for one shard, and its worst packs")
def shard_balance(
    dataset: ServedDataset,
    shard: ShardName,
    layout: Layout = None,
    ring: Ring = None,
    cp: Cp = None,
    measure: Annotated[Measure, Query(description="The measure by which packs are the worst.")] = "attention",
) -> ShardBalance:
    """Each of them is explained from its own mask."""
    own, chosen = packs_of_shard(dataset, shard), choose(dataset.config, layout, ring, cp)
    worst = worst_packs(dataset, measure, chosen, own, WORST)
    return ShardBalance(
        **_balance(dataset, layout, ring, cp, own),
        shard=shard,
        chosen=chosen,
        measure=measure,
        worst=explain_packs(dataset, worst, measure, chosen, read=True),
    )


def _balance(
    dataset: ServedDataset, layout: str | None, ring: int | None, cp: int | None, packs: range | None
) -> dict[str, object]:
    config = dataset.config
    check("layout", layout, config.layouts)
    check("ring", ring, config.ring_degrees)
    check("cp", cp, config.cp_sizes)
    layouts, degrees = [layout] if layout else list(config.layouts), [ring] if ring else sorted(config.ring_degrees)
    return {
        "dataset_id": dataset.manifest.dataset_id,
        "seq_len": config.seq_len,
        "layouts": [layout_balance(dataset, scheme, degree, packs) for scheme in layouts for degree in degrees],
        "preferred": preferred(dataset, layouts, degrees, packs),
        "images": [image_balance(dataset, size, packs) for size in ([cp] if cp else sorted(config.cp_sizes))],
    }


COLUMNS = ("n_tokens", "n_documents", "n_images", "cost")
SORTS = ("first_pack", "bytes", "fill", "cost", *MEASURED)


@router.get("/shards", tags=["shards"], summary="Shards, the worst balanced first")
def shards(
    dataset: ServedDataset,
    part: Paged,
    sort: Annotated[
        str,
        Query(
            description=f"One of {', '.join(SORTS)}; `-` in front: the largest first. A measure is a shard's mean.",
            max_length=64,
        ),
    ] = "-attention",
    layout: Layout = None,
    ring: Ring = None,
    cp: Cp = None,
) -> ShardPage:
    """Each with its worst pack and the document that dominates it; `?cp=8` asks about 8 ranks."""
    chosen = choose(dataset.config, layout, ring, cp)
    name = sort.removeprefix("-")
    if name not in SORTS:
        raise not_legal(f"query.sort: {sort!r:.80} is unknown; legal are {', '.join(SORTS)}, and with - in front")
    by = MEASURED[name if name in MEASURED else "attention"]
    order = ranked(_keys(dataset, name, chosen), part.wanted, descending=sort.startswith("-")).tolist()
    spreads = shard_spreads(dataset, chosen, order)
    worst = worst_of_shards(dataset, by.key, chosen, order)
    explained = dict(zip(worst, explain_packs(dataset, [*worst.values()], by.key, chosen, read=False), strict=True))
    items = [_entry(dataset, dataset.shards[number], spreads[number], explained.get(number)) for number in order]
    return ShardPage(items=items, chosen=chosen, sort=sort, **part.fields(len(dataset.shards)))


def _keys(dataset: ServedDataset, name: str, chosen: Chosen) -> Float64[np.ndarray, "shards"]:
    """The value by which each shard is sorted; nan, which comes last, where it has none."""
    if name in ("first_pack", "bytes"):
        return (dataset.shards.first_packs if name == "first_pack" else dataset.shards.bytes).astype(np.float64)
    if name in MEASURED:
        return means_of_shards(dataset, measure_values(dataset, name, chosen))
    column = dataset.numbers("packs.parquet", "n_tokens" if name == "fill" else name)
    return means_of_shards(dataset, column.astype(np.float64))


def _entry(dataset: ServedDataset, shard: ShardEntry, spread: dict[str, Spread], worst: WorstPack | None) -> ShardRow:
    own = packs_of(shard)
    tokens, documents, images, cost = (dataset.numbers("packs.parquet", name)[own.start : own.stop] for name in COLUMNS)
    return ShardRow(
        **shard.model_dump(include={"name", "first_pack", "packs", "bytes", "sha256"}),
        fill=float(tokens.sum()) / (shard.packs * dataset.config.seq_len),
        documents=int(documents.sum()),
        images=int(images.sum()),
        cost=float(cost.mean()),
        **{figure.of_shard or key: spread[key] for key, figure in MEASURED.items()},
        worst=worst,
    )
