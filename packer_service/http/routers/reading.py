"""One document of a pack, as it is read: its text with what carries loss, its pictures in place."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated
from urllib.parse import quote

import numpy as np
from fastapi import APIRouter, Path, Query

from preshard.packer_service.http.dataset.detokenizer import find_decoder
from preshard.packer_service.http.dataset.reader import Dataset
from preshard.packer_service.http.dataset.sample import ServedSample, read_sample
from preshard.packer_service.http.models.reading import CropToShow, DocumentToRead, UnitToShow
from preshard.packer_service.http.parameters import PackId, ServedDataset
from preshard.packer_service.http.problems import not_found, not_legal
from preshard.packer_service.http.service import DatasetRoute
from preshard.packer_service.report.shown import document_spans
from preshard.schemas.sequence import IGNORE_INDEX

router = APIRouter(prefix="/v1/datasets/{name}/packs", tags=["packs"], route_class=DatasetRoute)

MOST_TOKENS = 8192
"""Most tokens of one answer: a document can be as long as its pack."""

Number = Annotated[int, Path(description="A document's number in its pack.", ge=0, lt=2**31, examples=[0])]


@router.get("/{pack_id}/documents/{number}", summary="One document of a pack, to be read")
def document(
    dataset: ServedDataset,
    pack_id: PackId,
    number: Number,
    start: Annotated[int, Query(ge=0, lt=2**31, description="First token, counted from the document's own.")] = 0,
    end: Annotated[int | None, Query(ge=0, lt=2**31, description="One past the last; default: 8,192 tokens.")] = None,
) -> DocumentToRead:
    """Its text in runs of equal loss, and between them the units that images and frames are."""
    sample = read_sample(dataset, pack_id)
    documents = sample.head.documents
    if number >= len(documents):
        raise not_found("document", f"There is no document {number}; pack {pack_id} has {len(documents)}.")
    span = documents[number]
    end = min(start + MOST_TOKENS, span.length) if end is None else end
    if not start <= end <= span.length or end - start > MOST_TOKENS:
        raise not_legal(f"query: {start} to {end} is not a range of at most {MOST_TOKENS} of its {span.length} tokens")
    decode = find_decoder(dataset)
    tokens, inside = sample.sequence, slice(span.start, span.start + span.length)
    units = _units(dataset, sample, number)
    spans = document_spans(
        tokens=tokens.tokens[inside],
        labels=tokens.labels[inside],
        loss_weights=tokens.loss_weights[inside],
        branch_ids=tokens.branch_ids[inside],
        position_ids=np.atleast_2d(tokens.position_ids)[:, inside],
        unit_edges=np.array([(unit.start, unit.end) for unit in units], np.int64).reshape(-1, 2),
        decode=decode,
        part=slice(start, end),
    )
    return DocumentToRead(
        pack_id=pack_id,
        number=number,
        doc_id=span.doc_id,
        piece=span.piece,
        source=span.source,
        first_token=span.start,
        length=span.length,
        loss_tokens=int((tokens.labels[inside] != IGNORE_INDEX).sum()),
        annotations=int(tokens.branch_ids[inside].max(initial=0)),
        tokenizer=dataset.manifest.tokenizer.name,
        start=start,
        end=end,
        spans=spans,
        units=[unit for unit in units if unit.start < end and unit.end > start],
        previous=number - 1 if number else None,
        next=number + 1 if number + 1 < len(documents) else None,
    )


def _units(dataset: Dataset, sample: ServedSample, number: int) -> list[UnitToShow]:
    """Units of a document in the order of their tokens."""
    head = sample.head
    offset = head.documents[number].start
    crops = zip(head.units, pairwise([0, *head.cum_image_bounds]), strict=True)
    own = [(unit, edges) for unit, edges in crops if unit.document == number]
    return [
        UnitToShow(
            **unit.model_dump(include={"medium", "kind", "grid", "patches", "rows", "load"}),
            number=place,
            start=unit.start - offset,
            end=unit.end - offset,
            crops=[_crop(dataset, sample, index) for index in range(*edges)],
        )
        for place, (unit, edges) in enumerate(own)
    ]


def _crop(dataset: Dataset, sample: ServedSample, index: int) -> CropToShow:
    image = sample.head.images[index]
    base = f"/v1/datasets/{quote(dataset.name, safe=':~')}/packs/{sample.place.pack_id}/images"
    return CropToShow(
        index=index, url=f"{base}/{index}", width=image.width, height=image.height, timestamp=image.timestamp
    )
