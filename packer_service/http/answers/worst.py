"""Reason why a pack is badly balanced: a sentence about the document that weighs most in it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

from preshard.packer_service.http.dataset.reader import ServedDataset
from preshard.packer_service.http.dataset.sample import read_sample
from preshard.packer_service.http.models.balance import Chosen, Heaviest, WorstPack
from preshard.packer_service.http.problems import damaged
from preshard.packer_service.report.figures import MEASURED

_COLUMNS = ("length", "n_images", "doc_id", "source")

_DOMINATES = 0.1
"""Share of tokens or pairs from which a document is named as the cause."""


def explain_packs(
    dataset: ServedDataset, found: Sequence[tuple[int, float]], measure: str, chosen: Chosen, *, read: bool
) -> list[WorstPack]:
    """Packs that are badly balanced by a measure, and why.

    Args:
        dataset: the dataset.
        found: each pack and the value that the measure has in it.
        measure: the measure.
        chosen: the layout and degrees at which it has that value.
        read: whether to weigh documents by the pack's own mask, which means reading its shard, or by their lengths.
    """
    figure = MEASURED[measure]
    heaviest = _find_heaviest(dataset, [pack for pack, _ in found], by_images=figure.of == "images", read=read)
    at = f"{chosen.layout}, ring degree {chosen.ring_degree}"
    where = at if figure.of == "layout" else f"CP size {chosen.cp_size}"
    return [
        WorstPack(
            pack_id=pack,
            value=value,
            heaviest=named,
            why=f"In pack {pack} {figure.worst.format(value=value)} ({where}): "
            f"{_because(named, measure, chosen.cp_size)}.",
        )
        for (pack, value), named in zip(found, heaviest, strict=True)
    ]


def _find_heaviest(
    dataset: ServedDataset, packs: Sequence[int], *, by_images: bool, read: bool
) -> list[Heaviest | None]:
    """The document that weighs most in each pack; None where every document of a pack was lost while writing."""
    owned = [dataset.documents_of(pack) for pack in packs]
    rows = iter(dataset.rows("documents.parquet", [place for own in owned for place in own], _COLUMNS))
    found = list[Heaviest | None]()
    for pack, own in zip(packs, owned, strict=True):
        areas = _read_areas(dataset, pack, len(own)) if read and own else None
        found.append(_weigh(list(islice(rows, len(own))), areas, by_images=by_images) if own else None)
    return found


def _read_areas(dataset: ServedDataset, pack: int, n_documents: int) -> list[int]:
    """The pairs that the mask of a pack allows each of its documents, read from its shard."""
    areas = read_sample(dataset, pack).document_areas().tolist()
    if len(areas) != n_documents:
        reason = f"documents.parquet has {n_documents} documents of pack {pack}, and its sample {len(areas)}"
        raise damaged(dataset.name, reason)
    return areas


def _weigh(rows: list[dict[str, Any]], areas: list[int] | None, *, by_images: bool) -> Heaviest:
    """The document of a pack that weighs most, the first of equal ones."""
    weights = [row["n_images"] for row in rows] if by_images else areas or [row["length"] for row in rows]
    at = max(range(len(rows)), key=lambda i: (weights[i], -i))
    return Heaviest(
        **rows[at],
        share_of_tokens=rows[at]["length"] / sum(row["length"] for row in rows),
        share_of_attention=areas[at] / sum(areas) if areas else None,
        n_documents=len(rows),
        pack_images=sum(row["n_images"] for row in rows),
    )


def _because(heaviest: Heaviest | None, measure: str, ranks: int) -> str:
    if heaviest is None:
        return "it holds no document"
    if MEASURED[measure].of == "images":
        crops = "crop" if heaviest.pack_images == 1 else "crops"
        return (
            f"it has {heaviest.pack_images} {crops} for {ranks} ranks, in frames and stills that stay whole, "
            f"{heaviest.n_images} of them in {heaviest.doc_id}"
        )
    share = f", {heaviest.share_of_attention:.0%} of the pairs" if heaviest.share_of_attention is not None else ""
    if heaviest.share_of_tokens < _DOMINATES and (heaviest.share_of_attention or 0) < _DOMINATES:
        return (
            f"no document dominates the {heaviest.n_documents} that it has; {heaviest.doc_id}, the heaviest, has "
            f"{heaviest.length:,} tokens ({heaviest.share_of_tokens:.0%}{share})"
        )
    return (
        f"{heaviest.doc_id} has {heaviest.length:,} of its tokens ({heaviest.share_of_tokens:.0%}){share}, "
        f"among {heaviest.n_documents} documents"
    )
