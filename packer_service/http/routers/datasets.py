"""The datasets below the root, and one of them as a whole."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from preshard.packer_service.http.dataset.reader import ServedDataset
from preshard.packer_service.http.models.datasets import DatasetDetail, DatasetPage, Overview
from preshard.packer_service.http.parameters import Paged
from preshard.packer_service.http.service import DatasetRoute, service_of
from preshard.packer_service.report.compare import ComparedSide, compared_side
from preshard.packer_service.report.dataset import mixture_of, warnings_of
from preshard.packer_service.report.fill import encoder_stragglers
from preshard.packer_service.report.records import EncoderSteps
from preshard.packer_service.report.run import JobFacts

listed = APIRouter(prefix="/v1/datasets", tags=["datasets"])
router = APIRouter(prefix="/v1/datasets/{name}", tags=["datasets"], route_class=DatasetRoute)


OF_MANIFEST = (
    *("dataset_id", "preshard_version", "counts", "tokenizer", "config"),
    *("unused_columns", "unread_files", "filtered"),
)
"""Fields of a manifest that the answer about a dataset has as they are."""


@router.get("/compared", summary="One side of a comparison: named figures, and which of two values is better")
def compared_figures(dataset: ServedDataset) -> ComparedSide:
    """Two of these answers side by side are `preshard report --against`: figures join by section and name.

    What only one side names is nothing among rejects and sources, and unknown elsewhere.
    """
    figures, counts = dataset.figures, dataset.manifest.counts
    return compared_side(
        dataset.name,
        source_documents=counts.source_documents,
        documents=counts.documents,
        fill=figures,
        losses=figures,
        shares=mixture_of(JobFacts(), figures.sources, dataset.config, counts.left_out).shares,
        balances=figures,
        lengths=figures.lengths,
        configuration=dataset.manifest.config,
    )


@router.get("/encoder", summary="How even the vision encoder's work is in a step")
def encoder(dataset: ServedDataset) -> EncoderSteps:
    """Straggler ratios by data-parallel size, as in `preshard report --json`, from a column of `packs.parquet`."""
    loads = dataset.numbers("packs.parquet", "load")
    return EncoderSteps(encoder_straggler=encoder_stragglers(loads, dataset.config))


@listed.get("", summary="Every dataset below the root")
async def datasets(request: Request, response: Response, part: Paged) -> DatasetPage:
    """Whole, unfinished and damaged ones, by name. New and changed ones appear without a restart."""
    listing = service_of(request).listing
    await listing.fresh(None)
    found = list(listing.look().values())
    page = DatasetPage(items=found[part.wanted], complete=listing.complete, **part.fields(len(found)))
    response.headers.update(page.link_header())
    return page


@router.get("", summary="One dataset: fill, losses, steps, sizes")
def dataset(dataset: ServedDataset) -> DatasetDetail:
    """The figures of `preshard report --json` except balance, which has its own path; histograms and source totals."""
    config, manifest, (packed, seconds, limit, thinned) = dataset.config, dataset.manifest, dataset.run
    return DatasetDetail(
        name=dataset.name,
        **{name: getattr(manifest, name) for name in OF_MANIFEST},
        packed=packed,
        block_size=config.block_size,
        warnings=warnings_of(manifest, config, thinned),
        shards=len(dataset.shards),
        bytes=dataset.shard_bytes,
        **{name: value for name, value in dataset.figures if name in Overview.model_fields and name != "limit"},
        limit=limit,
        layouts=list(config.layouts),
        ring_degrees=sorted(config.ring_degrees),
        cp_sizes=sorted(config.cp_sizes),
        files=manifest.sources,
        seconds=seconds,
        plan_seconds=seconds.get("plan_seconds", 0.0),
    )
