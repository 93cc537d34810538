"""Documents: where they went, or why they did not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from fastapi import APIRouter, Path, Query
from jaxtyping import Int64, UInt32

from preshard.packer_service.http.answers.choice import choose
from preshard.packer_service.http.dataset.cache import size_of
from preshard.packer_service.http.dataset.reader import ServedDataset, numbers_of
from preshard.packer_service.http.dataset.sample import ServedSample, read_sample, stored_layout
from preshard.packer_service.http.models.balance import Chosen
from preshard.packer_service.http.models.documents import (
    DocumentPage,
    DocumentRow,
    PlacedPiece,
    RejectPage,
    RejectRow,
    TokensOnRank,
    Whereabouts,
)
from preshard.packer_service.http.parameters import Layout, Paged, Ring
from preshard.packer_service.http.problems import not_found
from preshard.packer_service.http.service import DatasetRoute
from preshard.schemas.layout import TokenLayout

router = APIRouter(prefix="/v1/datasets/{name}", tags=["documents"], route_class=DatasetRoute)

DOCUMENTS, REJECTS = "documents.parquet", "rejects.parquet"
ROW, REJECT = tuple(DocumentRow.model_fields), tuple(RejectRow.model_fields)

MENTIONED = 3
"""Pieces and rejects that a summary names; the answer lists all."""

MARKED_BYTES, MOST_MARKED = 16, 10_000
"""Last bytes of an id that its mark depends on, and most documents of one mark whose ids are read by themselves."""

Text = Annotated[str | None, Query(max_length=1024)]


@router.get("/documents", summary="Packed documents by their id")
def documents(
    dataset: ServedDataset, part: Paged, prefix: Text = None, contains: Text = None, source: Text = None
) -> DocumentPage:
    """Documents whose id begins with `prefix` and contains `contains`, from one `source`; all without parameters."""
    found: range | Int64[np.ndarray, "rows"] = range(dataset.n_rows(DOCUMENTS))
    if prefix or contains or source is not None:
        found = dataset.kept(
            ("found", prefix, contains, source), lambda: _found(dataset, prefix, contains, source), size_of
        )
    rows = dataset.rows(DOCUMENTS, found[part.wanted], ROW)
    return DocumentPage(items=[DocumentRow(**row) for row in rows], **part.fields(len(found)))


def _found(
    dataset: ServedDataset, prefix: str | None, contains: str | None, source: str | None
) -> Int64[np.ndarray, "rows"]:
    """The rows of documents for which all conditions hold."""
    asked: list[tuple[str, Callable[..., pa.ChunkedArray], str | None]] = [
        ("doc_id", pc.starts_with, prefix or None),
        ("doc_id", pc.match_substring, contains or None),
        ("source", pc.equal, source),
    ]
    conditions = [(name, function, wanted) for name, function, wanted in asked if wanted is not None]
    return _rows_where(dataset, conditions)


def _rows_where(
    dataset: ServedDataset, conditions: Sequence[tuple[str, Callable[..., pa.ChunkedArray], str]]
) -> Int64[np.ndarray, "rows"]:
    """The rows of documents for which all conditions hold: each a column, a function and what that compares."""

    def where(part: pa.Table) -> tuple[int, Int64[np.ndarray, "rows"]]:
        return len(part), _where([function(part[name], wanted) for name, function, wanted in conditions], len(part))

    names = list(dict.fromkeys(name for name, _, _ in conditions))
    found, before = [np.zeros(0, np.int64)], 0
    for length, rows in dataset.of_parts(DOCUMENTS, names, where):
        found.append(before + rows)
        before += length
    return np.concatenate(found)


def _rows_of_id(dataset: ServedDataset, doc_id: str) -> Int64[np.ndarray, "rows"]:
    """The rows of documents that have an id. Marks of all ids are kept, so that only the first question reads them."""

    def made() -> UInt32[np.ndarray, "documents"]:
        parts = dataset.of_parts(DOCUMENTS, ["doc_id"], lambda part: mark_ids(part["doc_id"]))
        return np.concatenate([np.zeros(0, np.uint32), *parts])

    marks = dataset.kept(("marks",), made, size_of)
    found = np.flatnonzero(marks == mark_ids(pa.chunked_array([[doc_id]]))[0])
    if len(found) > MOST_MARKED:
        return _rows_where(dataset, [("doc_id", pc.equal, doc_id)])
    is_it = [row["doc_id"] == doc_id for row in dataset.rows(DOCUMENTS, found, ["doc_id"])]
    return found[np.array(is_it, bool)]


def mark_ids(ids: pa.ChunkedArray) -> UInt32[np.ndarray, "ids"]:
    """A number for each id, by its length and its last bytes; most others have another one (FNV-1a)."""
    joined = pa.concat_arrays(ids.cast(pa.binary()).chunks or [pa.array([], pa.binary())])
    _, ends, data = joined.buffers()
    edges = np.frombuffer(ends, np.int32, len(joined) + 1, 4 * joined.offset)
    letters = np.frombuffer(data or b"\0", np.uint8)
    marks = np.diff(edges).astype(np.uint32)
    for back in range(1, MARKED_BYTES + 1):
        at = edges[1:] - back
        marks = (marks ^ np.where(at >= edges[:-1], letters[np.maximum(at, 0)], 0)) * np.uint32(16_777_619)
    return marks


def _where(conditions: list[pa.ChunkedArray], n_rows: int) -> Int64[np.ndarray, "rows"]:
    """The rows for which all conditions hold."""
    holds = np.ones(n_rows, bool)
    for condition in conditions:
        holds &= numbers_of(condition.cast(pa.uint8())).astype(bool)
    return np.flatnonzero(holds)


@router.get("/documents/{doc_id:path}", summary="Where a document went")
def document(
    dataset: ServedDataset,
    doc_id: Annotated[str, Path(description="A document's id.", max_length=65536)],
    layout: Layout = None,
    ring: Ring = None,
) -> Whereabouts:
    """Its packs, positions and owners, or why it is in no pack."""
    chosen = choose(dataset.config, layout, ring, None)
    placed = _rows_of_id(dataset, doc_id)
    lost = _where([pc.equal(dataset.column(REJECTS, "doc_id"), doc_id)], dataset.n_rows(REJECTS))
    if not len(placed) and not len(lost):
        raise not_found("document", f"No document {doc_id!r:.200} was packed or rejected; only whole ids match.")
    pieces = [_placed(dataset, row, chosen) for row in dataset.rows(DOCUMENTS, placed, (*ROW, "aligned_length"))]
    rejects = [RejectRow(**row) for row in dataset.rows(REJECTS, lost, REJECT)]
    return Whereabouts(doc_id=doc_id, chosen=chosen, pieces=pieces, rejects=rejects, summary=_summary(pieces, rejects))


def _placed(dataset: ServedDataset, row: dict[str, int | str], chosen: Chosen) -> PlacedPiece:
    sample = read_sample(dataset, int(row["pack_id"]))
    stored = stored_layout(dataset, sample, chosen.layout, chosen.ring_degree)
    return PlacedPiece.model_validate(
        {
            **row,
            "number": _number(sample, int(row["start"])),
            "key": sample.place.key,
            "shard": sample.place.shard,
            "ranks": _ranks(stored, int(row["start"]), int(row["start"]) + int(row["length"])),
            "images": _crops(sample, int(row["start"])),
        }
    )


def _ranks(stored: TokenLayout, start: int, end: int) -> list[TokensOnRank]:
    """Number of tokens of a range on each ring rank; ranks that hold none are left out."""
    begin, stop = stored.runs[:, 1], stored.runs[:, 1] + stored.runs[:, 2]
    inside = np.maximum(np.minimum(stop, end) - np.maximum(begin, start), 0)
    tokens = np.bincount(stored.runs[:, 0], weights=inside, minlength=stored.ring_degree).astype(int)
    return [TokensOnRank(ring_rank=rank, tokens=number) for rank, number in enumerate(tokens.tolist()) if number]


def _number(sample: ServedSample, start: int) -> int:
    """The number of the document that begins at a token."""
    return next((number for number, span in enumerate(sample.head.documents) if span.start == start), 0)


def _crops(sample: ServedSample, start: int) -> list[int] | None:
    """The range of crops of the document that begins at a token: the first, and one past the last."""
    before = 0
    for span in sample.head.documents:
        if span.start == start:
            return [before, before + span.n_images]
        before += span.n_images
    return None


def _summary(pieces: list[PlacedPiece], rejects: list[RejectRow]) -> str:
    sentences = [
        f"Packed in pack {piece.pack_id} ({piece.shard}), tokens {piece.start:,} to {piece.start + piece.length:,}"
        + (f", as piece {piece.piece}" if len(pieces) > 1 else "")
        for piece in pieces[:MENTIONED]
    ]
    sentences += [f"and {len(pieces) - MENTIONED} more pieces"] if len(pieces) > MENTIONED else []
    sentences += [
        f"{'Another row of the same id was rejected' if pieces else 'Rejected'} at the stage {reject.stage}: "
        f"{reject.code} ({reject.message})"
        for reject in rejects[:MENTIONED]
    ]
    return "; ".join(sentences) + "."


@router.get("/rejects", summary="What was lost, and why")
def rejects(
    dataset: ServedDataset, part: Paged, code: Text = None, source: Text = None, stage: Text = None
) -> RejectPage:
    """Rejected documents in source order, all or those of one code, source or stage."""
    asked = {"code": code, "source": source, "stage": stage}
    conditions = [pc.equal(dataset.column(REJECTS, name), value) for name, value in asked.items() if value is not None]
    found = _where(conditions, dataset.n_rows(REJECTS))
    rows = [RejectRow(**row) for row in dataset.rows(REJECTS, found[part.wanted], REJECT)]
    counted = {f"by_{name}": _counts(dataset, name, found) for name in asked}
    return RejectPage.model_validate({"items": rows, **counted, **part.fields(len(found))})


def _counts(dataset: ServedDataset, column: str, rows: Int64[np.ndarray, "rows"]) -> dict[str, int]:
    counted = pc.value_counts(dataset.column(REJECTS, column).take(pa.array(rows)))
    return dict(sorted((entry["values"], entry["counts"]) for entry in counted.to_pylist()))
