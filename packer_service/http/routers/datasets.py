"""The datasets below the root, and one of them as a whole."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
from fastapi import APIRouter, Request

from packer_service.http.answers.entries import entry_of
from packer_service.http.answers.histograms import doubling_histogram, histogram
from packer_service.http.dataset.reader import Dataset
from packer_service.http.models.datasets import (
    DatasetDetail,
    DatasetEntry,
    DatasetPage,
    Histograms,
    SourceTotals,
)
from packer_service.http.parameters import Paged, ServedDataset
from packer_service.http.service import DatasetRoute, service_of
from packer_service.plan.plan import Plan
from packer_service.report.dataset import run_seconds
from packer_service.report.figures import Fill
from packer_service.report.fill import plan_as_written, plan_fill
from packer_service.report.losses import count_by, losses
from packer_service.report.mismatch import warnings_of
from schemas.manifest import RUN

listing = APIRouter(prefix="/v1/datasets", tags=["datasets"])
router = APIRouter(prefix="/v1/datasets/{name}", tags=["datasets"], route_class=DatasetRoute)


LARGEST_RUN = 16 << 20
"""Bytes of ``run.json`` that are read: a hundred thousand attempts of one job take fewer."""


@listing.get("", summary="Every dataset below the root")
def datasets(request: Request, part: Paged) -> DatasetPage:
    """Whole, unfinished and damaged ones, by name. New and changed ones appear without a restart."""
    catalog = service_of(request).catalog
    found = list(catalog.look().values())
    entries = [each if isinstance(each, DatasetEntry) else entry_of(each) for each in found[part.wanted]]
    return DatasetPage(items=entries, complete=catalog.complete, **part.fields(len(found)))


@router.get("", summary="One dataset: fill, losses, steps, sizes")
def dataset(dataset: ServedDataset) -> DatasetDetail:
    """The figures of `preshard report --json` except balance, which has its own path; histograms and source totals."""
    config, manifest = dataset.config, dataset.manifest
    documents = _table(dataset, "documents.parquet", ["source", "n_images", "length", "truncated_tokens", "doc_id"])
    rejects = _table(dataset, "rejects.parquet", ["source", "code", "message", "location", "doc_id"])
    fill = plan_fill(
        _written(dataset),
        images=dataset.numbers("documents.parquet", "n_images"),
        max_images=config.max_images,
        patches=dataset.numbers("documents.parquet", "n_patches"),
        max_patches=config.max_patches,
        window=config.order.window,
    )
    seconds = _seconds(dataset)
    return DatasetDetail(
        name=dataset.name,
        dataset_id=manifest.dataset_id,
        preshard_version=manifest.preshard_version,
        block_size=config.block_size,
        unused_columns=manifest.unused_columns,
        unread_files=manifest.unread_files,
        warnings=warnings_of(manifest, config),
        shards=len(manifest.shards),
        bytes=dataset.shard_bytes,
        counts=manifest.counts,
        **{name: value for name, value in fill if name in Fill.model_fields},
        **dict(losses(rejects, documents, "truncated_tokens")),
        sources=_sources(documents, rejects),
        histograms=_histograms(dataset),
        layouts=list(config.layouts),
        ring_degrees=sorted(config.ring_degrees),
        cp_sizes=sorted(config.cp_sizes),
        files=manifest.sources,
        tokenizer=manifest.tokenizer,
        config=manifest.config,
        seconds=seconds,
        plan_seconds=seconds.get("plan_seconds", 0.0),
    )


def _table(dataset: Dataset, name: str, columns: list[str]) -> pa.Table:
    return pa.table({column: dataset.column(name, column) for column in columns})


def _written(dataset: Dataset) -> Plan:
    columns = {name: dataset.numbers("documents.parquet", name) for name in ("start", "length", "aligned_length")}
    return plan_as_written(
        seq_len=dataset.config.seq_len,
        cost=dataset.numbers("packs.parquet", "cost"),
        pack_ids=dataset.numbers("documents.parquet", "pack_id"),
        **columns,
    )


def _seconds(dataset: Dataset) -> dict[str, float]:
    """The times in run.json; none where it is missing or malformed."""
    try:
        return run_seconds(json.loads(dataset.folder.read(RUN, LARGEST_RUN)))
    except (OSError, ValueError, RecursionError):
        return {}


def _sources(documents: pa.Table, rejects: pa.Table) -> list[SourceTotals]:
    sums = [("length", "sum"), ("n_images", "sum"), ("truncated_tokens", "sum"), ("doc_id", "count_distinct")]
    packed = {row["source"]: row for row in documents.group_by("source", use_threads=False).aggregate(sums).to_pylist()}
    codes: dict[str, dict[str, int]] = {}
    for source, code, number in count_by(rejects, "source", "code"):
        codes.setdefault(source, {})[code] = number
    return [
        SourceTotals(
            source=source,
            documents=row.get("doc_id_count_distinct", 0),
            tokens=row.get("length_sum", 0),
            images=row.get("n_images_sum", 0),
            truncated_tokens=row.get("truncated_tokens_sum", 0),
            rejected=sum(codes.get(source, {}).values()),
            rejects=codes.get(source, {}),
        )
        for source in sorted({*packed, *codes})
        for row in [packed.get(source, {})]
    ]


def _histograms(dataset: Dataset) -> Histograms:
    def packs(name: str) -> np.ndarray:
        return dataset.numbers("packs.parquet", name)

    def documents(name: str) -> np.ndarray:
        return dataset.numbers("documents.parquet", name)

    return Histograms(
        document_tokens=doubling_histogram(documents("length"), "tokens"),
        document_images=doubling_histogram(documents("n_images"), "crops"),
        pack_cost=histogram(packs("cost"), "GFLOP"),
        pack_tokens=histogram(packs("n_tokens"), "tokens"),
        pack_images=histogram(packs("n_images"), "crops"),
        pack_documents=histogram(packs("n_documents"), "documents"),
    )
