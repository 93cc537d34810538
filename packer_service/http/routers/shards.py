"""The shards of a dataset, the worst balanced first."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query
from jaxtyping import Float64

from preshard.packer_service.http.answers.choice import choose
from preshard.packer_service.http.answers.measures import means_of_shards, measures, shard_means
from preshard.packer_service.http.answers.worst import worst_pack
from preshard.packer_service.http.dataset.ranking import ranked
from preshard.packer_service.http.dataset.reader import Dataset
from preshard.packer_service.http.models.balance import MEASURES, Chosen, ShardPage, ShardRow
from preshard.packer_service.http.parameters import Cp, Layout, Paged, Ring, ServedDataset
from preshard.packer_service.http.problems import not_legal
from preshard.packer_service.http.service import DatasetRoute
from preshard.packer_service.report.records import Spread
from preshard.packer_service.report.spreads import spreads
from preshard.schemas.manifest import ShardEntry

router = APIRouter(prefix="/v1/datasets/{name}", tags=["shards"], route_class=DatasetRoute)

COLUMNS = ("n_tokens", "n_documents", "n_images", "cost")
SORTS = ("first_pack", "bytes", "fill", "cost", *MEASURES)


@router.get("/shards", summary="Shards, the worst balanced first")
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
    measured = measures(dataset, chosen)
    keys = _keys(dataset, name, chosen)
    order = ranked(keys, part.wanted, descending=sort.startswith("-"))
    by = name if name in MEASURES else "attention"
    columns = {name: dataset.numbers("packs.parquet", name) for name in COLUMNS}
    page = [dataset.shards[i] for i in order.tolist()]
    of_shards = {name: spreads([values[_packs_of(shard)] for shard in page]) for name, values in measured.items()}
    items = [
        _entry(dataset, shard, columns, {name: each[at] for name, each in of_shards.items()}, measured[by], by, chosen)
        for at, shard in enumerate(page)
    ]
    return ShardPage(items=items, chosen=chosen, sort=sort, **part.fields(len(keys)))


def _keys(dataset: Dataset, name: str, chosen: Chosen) -> Float64[np.ndarray, "shards"]:
    """The value by which each shard is sorted; nan, which comes last, where it has none."""
    edges = dataset.shards.first_packs
    if name in ("first_pack", "bytes"):
        return (edges if name == "first_pack" else dataset.shards.bytes).astype(np.float64)
    if name in MEASURES:
        return shard_means(dataset, name, chosen)
    column = "n_tokens" if name == "fill" else name
    return means_of_shards(dataset.numbers("packs.parquet", column).astype(np.float64), edges)


def _packs_of(shard: ShardEntry) -> slice:
    return slice(shard.first_pack, shard.first_pack + shard.packs)


def _entry(
    dataset: Dataset,
    shard: ShardEntry,
    columns: dict[str, np.ndarray],
    spread: dict[str, Spread],
    measured: Float64[np.ndarray, "packs"],
    by: str,
    chosen: Chosen,
) -> ShardRow:
    own = _packs_of(shard)
    tokens, documents, images, cost = (columns[name][own] for name in COLUMNS)
    values = measured[own]
    worst = None
    if spread[by].packs:
        at = int(np.argmax(np.where(np.isnan(values), -np.inf, values)))
        worst = worst_pack(dataset, shard.first_pack + at, by, float(values[at]), chosen, read=False)
    return ShardRow(
        **shard.model_dump(include={"name", "first_pack", "packs", "bytes", "sha256"}),
        fill=float(tokens.sum()) / (shard.packs * dataset.config.seq_len),
        documents=int(documents.sum()),
        images=int(images.sum()),
        cost=float(cost.mean()),
        **{name: spread[name] for name in ("attention", "gather_path", "ring_path", "traffic")},
        image_imbalance=spread["images"],
        pooled_imbalance=spread["pooled_tokens"],
        image_load_imbalance=spread["image_load"],
        worst=worst,
    )
