"""How evenly ranks are loaded: layouts side by side, over a dataset or a shard."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from preshard.packer_service.http.answers.choice import check, choose, packs_of_shard
from preshard.packer_service.http.answers.measures import image_balance, layout_balance, preferred, worst_packs
from preshard.packer_service.http.answers.worst import explain_packs
from preshard.packer_service.http.dataset.reader import Dataset
from preshard.packer_service.http.models.balance import Balance, Measure, ShardBalance
from preshard.packer_service.http.parameters import Cp, Layout, Ring, ServedDataset, ShardName
from preshard.packer_service.http.service import DatasetRoute

router = APIRouter(prefix="/v1/datasets/{name}", tags=["balance"], route_class=DatasetRoute)

WORST = 5
"""Packs of a shard that are explained: each is read from the shard, which takes some milliseconds."""


@router.get("/balance", summary="Layouts at all degrees side by side")
def balance(dataset: ServedDataset, layout: Layout = None, ring: Ring = None, cp: Cp = None) -> Balance:
    """For the layouts, ring degrees and CP sizes asked for, or else for all."""
    return Balance(**_balance(dataset, layout, ring, cp, None), shard=None)


@router.get("/shards/{shard}/balance", summary="The same for one shard, and its worst packs")
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
    dataset: Dataset, layout: str | None, ring: int | None, cp: int | None, packs: range | None
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
        "preferred": {degree: preferred(dataset, layouts, degree, packs) for degree in degrees},
        "images": [image_balance(dataset, size, packs) for size in ([cp] if cp else sorted(config.cp_sizes))],
    }
