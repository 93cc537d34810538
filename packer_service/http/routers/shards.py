"""The shards of a dataset, the worst balanced first."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query
from jaxtyping import Float64, Int64

from preshard.packer_service.http.answers.choice import choose, ranked
from preshard.packer_service.http.answers.measures import shard_means, shard_spreads, worst_of_shards
from preshard.packer_service.http.answers.worst import explain_packs
from preshard.packer_service.http.dataset.reader import Dataset
from preshard.packer_service.http.models.balance import Chosen, ShardPage, ShardRow, WorstPack
from preshard.packer_service.http.parameters import Cp, Layout, Paged, Ring, ServedDataset
from preshard.packer_service.http.problems import not_legal
from preshard.packer_service.http.service import DatasetRoute
from preshard.packer_service.report.figures import MEASURED
from preshard.packer_service.report.records import Spread
from preshard.schemas.manifest import ShardEntry

router = APIRouter(prefix="/v1/datasets/{name}", tags=["shards"], route_class=DatasetRoute)

COLUMNS = ("n_tokens", "n_documents", "n_images", "cost")
SORTS = ("first_pack", "bytes", "fill", "cost", *MEASURED)


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
    by = MEASURED[name if name in MEASURED else "attention"]
    order = ranked(_keys(dataset, name, chosen), part.wanted, descending=sort.startswith("-")).tolist()
    spreads = shard_spreads(dataset, chosen, order)
    worst = worst_of_shards(dataset, by.key, chosen, order)
    explained = dict(zip(worst, explain_packs(dataset, [*worst.values()], by.key, chosen, read=False), strict=True))
    items = [_entry(dataset, dataset.shards[number], spreads[number], explained.get(number)) for number in order]
    return ShardPage(items=items, chosen=chosen, sort=sort, **part.fields(len(dataset.shards)))


def _keys(dataset: Dataset, name: str, chosen: Chosen) -> Float64[np.ndarray, "shards"]:
    """The value by which each shard is sorted; nan, which comes last, where it has none."""
    edges = dataset.shards.first_packs
    if name in ("first_pack", "bytes"):
        return (edges if name == "first_pack" else dataset.shards.bytes).astype(np.float64)
    if name in MEASURED:
        return shard_means(dataset, name, chosen)
    column = "n_tokens" if name == "fill" else name
    return _means(dataset.numbers("packs.parquet", column).astype(np.float64), edges)


def _means(values: Float64[np.ndarray, "packs"], edges: Int64[np.ndarray, "shards"]) -> Float64[np.ndarray, "shards"]:
    """Means of the packs of each shard, where shards begin at the edges."""
    if not len(edges):
        return np.zeros(0)
    counts = np.diff(edges, append=len(values))
    means: Float64[np.ndarray, "shards"] = np.add.reduceat(values, edges) / counts
    return means


def _entry(dataset: Dataset, shard: ShardEntry, spread: dict[str, Spread], worst: WorstPack | None) -> ShardRow:
    own = range(shard.first_pack, shard.first_pack + shard.packs)
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
