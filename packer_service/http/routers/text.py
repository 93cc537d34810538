"""The tokens of a pack and their text."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import numpy as np
from fastapi import APIRouter, Query
from jaxtyping import Bool, Float32, Int64

from preshard.packer_service.http.dataset.detokenizer import Decode, find_decoder
from preshard.packer_service.http.dataset.sample import ServedSample, read_sample, rows_of_crops
from preshard.packer_service.http.models.packs import PackText, TokenSpan
from preshard.packer_service.http.parameters import PackId, ServedDataset
from preshard.packer_service.http.problems import not_legal
from preshard.packer_service.http.service import DatasetRoute
from preshard.schemas.manifest import SampleHead
from preshard.schemas.sequence import IGNORE_INDEX, PackedSequence

router = APIRouter(prefix="/v1/datasets/{name}/packs", tags=["packs"], route_class=DatasetRoute)

MOST_TOKENS = 8192
"""Most tokens of one answer, so that one request cannot ask for the text of a whole pack of a million tokens."""

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
    """In spans of one kind, document, branch and loss; a span of image tokens is one crop."""
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
    """Which tokens are the label of the token before them, and the weight of that loss."""
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
    changed = np.zeros(max(end - start - 1, 0), bool)
    for column in columns:
        changed |= column[1:] != column[:-1]
    edges = [0, *(np.flatnonzero(changed) + 1).tolist(), end - start] if end > start else [0]
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
        for first, behind in pairwise(edges)
    ]
