"""The text of a pack, decoded by the tokenizer that made its tokens: a range, or one document with its pictures."""

from __future__ import annotations

import hashlib
import pathlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated
from urllib.parse import quote

import numpy as np
from fastapi import APIRouter, Path, Query
from jaxtyping import Bool, Float32, Int64

from preshard.packer_service.http.dataset.folder import reason_of
from preshard.packer_service.http.dataset.reader import ServedDataset
from preshard.packer_service.http.dataset.sample import ServedSample, read_sample, rows_of_crops
from preshard.packer_service.http.models.documents import CropToShow, DocumentToRead, UnitToShow
from preshard.packer_service.http.models.packs import PackText, TokenSpan
from preshard.packer_service.http.parameters import PackId
from preshard.packer_service.http.problems import ProblemError, damaged, not_found, not_legal
from preshard.packer_service.http.service import DatasetRoute
from preshard.packer_service.report.document import document_spans, run_edges
from preshard.schemas.errors import ConfigError
from preshard.schemas.header import SampleHead
from preshard.schemas.manifest import LARGEST_CARRIED, MODEL, TOKENIZER
from preshard.schemas.sequence import IGNORE_INDEX, PackedSequence

router = APIRouter(prefix="/v1/datasets/{name}/packs", tags=["packs"], route_class=DatasetRoute)
MOST_TOKENS = 8192
"""Most tokens of one answer: a document can be as long as its pack."""


USUAL_TOKENS = 1024
"""Tokens of an answer when the request names no end."""

KINDS = ("text", "image", "padding")


@router.get("/{pack_id}/text", summary="Tokens of a range, decoded")
def text(
    dataset: ServedDataset,
    pack_id: PackId,
    start: Annotated[int, Query(ge=0, lt=2**31, description="First token.")] = 0,
    end: Annotated[int | None, Query(ge=0, lt=2**31, description="One past the last; default: 1,024 tokens.")] = None,
) -> PackText:
    """Text in spans of one kind, document, branch and loss; a span of image tokens is one crop."""
    seq_len = dataset.config.seq_len
    end = min(start + USUAL_TOKENS, seq_len) if end is None else end
    if not start <= end <= seq_len or end - start > MOST_TOKENS:
        raise not_legal(f"query: {start} to {end} is not a range of at most {MOST_TOKENS} of the {seq_len} tokens")
    sample = read_sample(dataset, pack_id)
    decode = find_decoder(dataset)
    tokens = sample.sequence
    return PackText(
        pack_id=pack_id,
        start=start,
        end=end,
        tokenizer=dataset.manifest.tokenizer.name,
        tokens=tokens.tokens[start:end].tolist(),
        labels=tokens.labels[start:end].tolist(),
        loss_weights=tokens.loss_weights[start:end].tolist(),
        position_ids=tokens.position_ids[:, start:end].tolist(),
        spans=_spans(sample, start, end, decode),
    )


def predicted(sequence: PackedSequence) -> tuple[Bool[np.ndarray, "seq"], Float32[np.ndarray, "seq"]]:
    """The tokens that are the label of the token before them, and the weight of that loss."""
    asked = np.concatenate([[False], sequence.labels[:-1] != IGNORE_INDEX])
    weights = np.where(asked, np.concatenate([[0], sequence.loss_weights[:-1]]), 0).astype(np.float32)
    return asked, weights


def _owners(head: SampleHead) -> tuple[Int64[np.ndarray, "rows_plus_1"], Int64[np.ndarray, "rows_plus_1"]]:
    """The unit and the crop of each pooled row, and -1 at the end."""
    units = np.repeat(np.arange(len(head.units)), [unit.rows for unit in head.units])
    crops = np.full(len(units), -1)
    for crop, (first, end) in reversed(list(enumerate(rows_of_crops(head)))):  # the first of crops that share rows
        crops[first:end] = crop
    return np.append(units, -1), np.append(crops, -1)


def _spans(sample: ServedSample, start: int, end: int, decode: Decode) -> list[TokenSpan]:
    sequence = sample.sequence
    asked, weights = predicted(sequence)
    pooled = sequence.pool_ids[start:end]
    units, crops = (of_row[pooled] for of_row in _owners(sample.head))  # pool_ids is -1 for other tokens
    kinds = np.where(sequence.doc_ids[start:end] < 0, 2, np.where(pooled >= 0, 1, 0))
    columns = (
        kinds, sequence.doc_ids[start:end], sequence.branch_ids[start:end], asked[start:end], weights[start:end], crops,
        units,
    )  # fmt: skip
    return [
        TokenSpan(
            start=start + first,
            end=start + behind,
            kind=KINDS[kinds[first]],
            document=int(columns[1][first]),
            branch=int(columns[2][first]),
            loss=bool(columns[3][first]),
            weight=float(columns[4][first]),
            text=decode(sequence.tokens[start + first : start + behind].tolist()) if kinds[first] == 0 else None,
            image=int(crops[first]) if kinds[first] == 1 else None,
            unit=int(units[first]) if kinds[first] == 1 else None,
        )
        for first, behind in pairwise(run_edges(*columns))
    ]


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


def _units(dataset: ServedDataset, sample: ServedSample, number: int) -> list[UnitToShow]:
    """Units of a document in the order of their tokens."""
    head = sample.head
    offset = head.documents[number].start
    crops = list(pairwise([0, *head.cum_image_bounds]))
    in_order = ((head.units[unit], crops[unit]) for unit in head.token_order)
    own = [(unit, edges) for unit, edges in in_order if unit.document == number]
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


def _crop(dataset: ServedDataset, sample: ServedSample, index: int) -> CropToShow:
    image = sample.head.images[index]
    base = f"/v1/datasets/{quote(dataset.name, safe=':~')}/packs/{sample.place.pack_id}/images"
    return CropToShow(
        index=index, url=f"{base}/{index}", width=image.width, height=image.height, timestamp=image.timestamp
    )


Decode = Callable[[Sequence[int]], str]

DECODER_BYTES = 64 << 20
"""Memory of a tokenizer that is kept, about."""


def find_decoder(dataset: ServedDataset) -> Decode:
    """The function that turns the dataset's tokens into text; ids that no token has are a problem of the dataset.

    The path in a dataset's configuration is never opened: it belongs to the machine that packed, and a manifest may
    name any file. Tekken is built in; any other tokenizer is the one that the dataset carries, or else one of the
    service's files by its hash.

    Raises:
        ProblemError: 409 the dataset's tokenizer is not one of these.
    """
    wanted = dataset.manifest.tokenizer
    # takes a second, which only questions about text should pay
    from preshard.packer_service.ingest.text.load import load_decoder, parse_decoder

    if wanted.name != "tekken":
        decode = dataset.kept(("decoder",), lambda: _carried(dataset, parse_decoder), lambda _: DECODER_BYTES)
        if decode is not None:
            return partial(_decoded, dataset, decode)
    files = [name for name in dataset.tokenizers if _sha256(name) == wanted.sha256]
    names = ["tekken"] if wanted.name == "tekken" else files
    for name in names:
        try:
            decoder = load_decoder(name)
        except ConfigError:
            continue
        if decoder.sha256 == wanted.sha256:
            return partial(_decoded, dataset, decoder.decode)
    raise ProblemError(
        409,
        "tokenizer-unavailable",
        "Tokenizer not available",
        f"{dataset.name}: tokens were made by {wanted.name!r:.80} (SHA-256 {wanted.sha256}), which neither the dataset "
        "nor the service has; start it with --tokenizer FILE",
    )


def _decoded(dataset: ServedDataset, decode: Decode, tokens: Sequence[int]) -> str:
    with dataset.reading():
        return decode(tokens)


def _carried(dataset: ServedDataset, parse: Callable[[bytes], Decode]) -> Decode | None:
    """The decoder of the tokenizer that a dataset carries; None if it carries none, or another than it should."""
    if not any(entry.name == TOKENIZER for entry in dataset.manifest.carried):
        return None
    with dataset.reading():
        content = dataset.folder.read(f"{MODEL}/{TOKENIZER}", LARGEST_CARRIED)
    if hashlib.sha256(content).hexdigest() != dataset.manifest.tokenizer.sha256:
        raise damaged(dataset.name, f"{MODEL}/{TOKENIZER} is not the tokenizer that made the tokens")
    try:
        return parse(content)
    except ConfigError as error:
        raise damaged(dataset.name, reason_of(error)) from None


def _sha256(name: str) -> str:
    try:
        with pathlib.Path(name).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
