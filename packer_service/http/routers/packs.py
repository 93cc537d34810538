"""The packs of a dataset in any order, and single packs."""

from __future__ import annotations

from dataclasses import asdict
from itertools import pairwise
from typing import Annotated, Any
from urllib.parse import quote

import numpy as np
from fastapi import APIRouter, Query
from jaxtyping import Int64

from preshard.packer_service.http.answers.choice import choose, packs_of_shard, ranked
from preshard.packer_service.http.answers.measures import measure_values, pack_measures
from preshard.packer_service.http.dataset.reader import ServedDataset
from preshard.packer_service.http.dataset.sample import ServedSample, read_sample, rows_of_crops
from preshard.packer_service.http.models.balance import Chosen
from preshard.packer_service.http.models.packs import (
    DocumentInPack,
    ImageInPack,
    PackDetail,
    PackPage,
    PackRow,
    RankBoundary,
    UnitInPack,
)
from preshard.packer_service.http.parameters import Cp, Layout, PackId, Paged, Ring
from preshard.packer_service.http.problems import not_legal
from preshard.packer_service.http.service import DatasetRoute
from preshard.packer_service.report.figures import MEASURED
from preshard.schemas.members import sample_key, shard_name
from preshard.schemas.sequence import IGNORE_INDEX

router = APIRouter(prefix="/v1/datasets/{name}/packs", tags=["packs"], route_class=DatasetRoute)

COLUMNS = (
    "n_tokens", "n_padding", "n_documents", "n_units", "n_images", "n_patches", "n_pooled_tokens", "load",
    "attention_area", "attention_tiles", "cost",
)  # fmt: skip
SORTS = ("pack_id", *COLUMNS, *MEASURED)

Sort = Annotated[
    str,
    Query(
        description=f"One of {', '.join(SORTS)}; with `-` in front for the largest first.",
        max_length=64,
        examples=["-cost"],
    ),
]


@router.get("", summary="Packs in any order, such as the worst first")
def packs(
    dataset: ServedDataset,
    part: Paged,
    sort: Sort = "pack_id",
    layout: Layout = None,
    ring: Ring = None,
    cp: Cp = None,
    shard: Annotated[str | None, Query(description="Only the packs of this shard.", max_length=256)] = None,
) -> PackPage:
    """Packs without a value for what they are sorted by come last."""
    chosen = choose(dataset.config, layout, ring, cp)
    own = range(dataset.n_packs) if shard is None else packs_of_shard(dataset, shard)
    rows = pack_rows(dataset, sorted_packs(dataset, sort, chosen, own, part.wanted), chosen)
    return PackPage(items=rows, chosen=chosen, sort=sort, **part.fields(len(own)))


def sorted_packs(
    dataset: ServedDataset, sort: str, chosen: Chosen, own: range, wanted: slice
) -> Int64[np.ndarray, "packs"]:
    """A part of consecutive packs in the requested order; equal ones by number.

    Raises:
        ProblemError: 422 packs cannot be sorted by that.
    """
    name, descending = sort.removeprefix("-"), sort.startswith("-")
    if name not in SORTS:
        raise not_legal(f"query.sort: {sort!r:.80} is unknown; legal are {', '.join(SORTS)}, and with - in front")
    if name == "pack_id":
        return np.array((own[::-1] if descending else own)[wanted], np.int64)
    if name in MEASURED:
        values = measure_values(dataset, name, chosen, None if len(own) == dataset.n_packs else own)
    else:
        values = dataset.numbers("packs.parquet", name)[own.start : own.stop]
    return own.start + ranked(values, wanted, descending=descending)


def pack_rows(dataset: ServedDataset, wanted: Int64[np.ndarray, "rows"], chosen: Chosen) -> list[PackRow]:
    """Some packs with their measures."""
    columns = {name: dataset.numbers("packs.parquet", name)[wanted].tolist() for name in COLUMNS}
    columns |= pack_measures(dataset, chosen, wanted)
    each, seq_len = dataset.config.packs_per_shard, dataset.config.seq_len
    rows = []
    for row, pack_id in enumerate(wanted.tolist()):
        values: dict[str, Any] = {name: column[row] for name, column in columns.items()}
        rows.append(
            PackRow(
                pack_id=pack_id,
                key=sample_key(pack_id),
                shard=shard_name(pack_id // each),
                index_in_shard=pack_id % each,
                fill=values["n_tokens"] / seq_len,
                **values,
            )
        )
    return rows


@router.get("/{pack_id}", summary="One pack: its documents, images and boundaries")
def pack(dataset: ServedDataset, pack_id: PackId) -> PackDetail:
    """The head of the pack's sample, and its row of the table."""
    sample = read_sample(dataset, pack_id)
    config, place = dataset.config, sample.place  # of which no answer has the checksum
    columns = {name: dataset.numbers("packs.parquet", name)[pack_id].item() for name in COLUMNS}
    return PackDetail(
        **asdict(place),
        seq_len=config.seq_len,
        loss_tokens=int((sample.sequence.labels != IGNORE_INDEX).sum()),
        fill=columns["n_tokens"] / config.seq_len,
        **columns,
        documents=_documents(sample),
        axes=dataset.manifest.axes,
        units=_units(sample),
        images=_images(dataset, sample),
        shares_crops=dataset.manifest.shares_crops,
        boundaries={size: _boundaries(ranks) for size, ranks in sample.head.image_shard_boundaries.items()},
        layouts=list(config.layouts),
        ring_degrees=sorted(config.ring_degrees),
        cp_sizes=sorted(config.cp_sizes),
        previous=pack_id - 1 if pack_id else None,
        next=pack_id + 1 if pack_id + 1 < dataset.n_packs else None,
    )


def _documents(sample: ServedSample) -> list[DocumentInPack]:
    areas = sample.document_areas()
    branches = sample.sequence.branch_ids
    return [
        DocumentInPack(
            number=number,
            **span.model_dump(),
            branches=int(branches[span.start : span.start + span.length].max(initial=0)),
            attention_area=int(areas[number]),
        )
        for number, span in enumerate(sample.head.documents)
    ]


def image_tokens(sample: ServedSample) -> list[tuple[int, int]]:
    """The token range of each crop: from the first token that its pooled rows fill to one past the last."""
    pool_ids = sample.sequence.pool_ids
    filled = np.argsort(pool_ids, kind="stable")[np.count_nonzero(pool_ids < 0) :]
    return [(int(filled[first]), int(filled[end - 1]) + 1) for first, end in rows_of_crops(sample.head)]


def _units(sample: ServedSample) -> list[UnitInPack]:
    edges = pairwise([0, *sample.head.cum_image_bounds])
    return [
        UnitInPack(index=index, first_image=first, end_image=end, **unit.model_dump())
        for index, (unit, (first, end)) in enumerate(zip(sample.head.units, edges, strict=True))
    ]


def _images(dataset: ServedDataset, sample: ServedSample) -> list[ImageInPack]:
    base = f"/v1/datasets/{quote(dataset.name, safe=':~')}/packs/{sample.place.pack_id}/images"
    return [
        ImageInPack(
            index=index,
            url=f"{base}/{index}",
            doc_id=image.doc_id,
            unit=image.unit,
            width=image.width,
            height=image.height,
            timestamp=image.timestamp,
            bytes=image.size,
            start=start,
            end=end,
        )
        for index, (image, (start, end)) in enumerate(zip(sample.head.images, image_tokens(sample), strict=True))
    ]


def _boundaries(ranks: dict[str, Any]) -> list[RankBoundary]:
    return [
        RankBoundary(
            rank=int(rank),
            start_image=part["start_image_idx"],
            end_image=part["end_image_idx"],
            start_pooled=part["start_pool_idx"],
            end_pooled=part["end_pool_idx"],
        )
        for rank, part in ranks.items()
    ]
