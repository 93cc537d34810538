"""Why a pack is badly balanced: a sentence about the document that weighs most in it."""

from __future__ import annotations

from preshard.packer_service.http.dataset.reader import Dataset
from preshard.packer_service.http.dataset.sample import read_sample
from preshard.packer_service.http.models.balance import Chosen, Heaviest, WorstPack
from preshard.packer_service.http.problems import damaged
from preshard.packer_service.report.figures import MEASURED

_SIZES, _NAMES = ("length", "n_images"), ("doc_id", "source")

_DOMINATES = 0.1
"""Share of tokens or pairs from which a document is named as the cause."""


def worst_pack(dataset: Dataset, pack_id: int, measure: str, value: float, chosen: Chosen, *, read: bool) -> WorstPack:
    """A pack that is badly balanced by a measure, and why.

    Args:
        dataset: the dataset.
        pack_id: the pack.
        measure: the measure.
        value: the measure's value.
        chosen: the layout and degrees at which it has that value.
        read: whether to weigh its documents by the pack's own mask, which means reading its shard, or by their lengths.
    """
    heaviest = _heaviest(dataset, pack_id, by_images=MEASURED[measure].of == "images", read=read)
    figure = MEASURED[measure]
    at = f"{chosen.layout}, ring degree {chosen.ring_degree}"
    what = f"{figure.worst.format(value=value)} ({at if figure.of == 'layout' else f'CP size {chosen.cp_size}'})"
    return WorstPack(
        pack_id=pack_id,
        value=value,
        heaviest=heaviest,
        why=f"In pack {pack_id} {what}: {_because(heaviest, measure, chosen.cp_size)}.",
    )


def _heaviest(dataset: Dataset, pack_id: int, *, by_images: bool, read: bool) -> Heaviest | None:
    own = dataset.documents_of(pack_id)
    if not own:
        return None  # every document of the pack was lost while writing
    rows = dataset.rows("documents.parquet", own, _SIZES)
    areas = read_sample(dataset, pack_id).document_areas().tolist() if read else None
    if areas is not None and len(areas) != len(rows):
        told = f"documents.parquet has {len(rows)} documents of pack {pack_id}, and its sample {len(areas)}"
        raise damaged(dataset.name, told)
    weights = [row["n_images"] for row in rows] if by_images else areas or [row["length"] for row in rows]
    at = max(range(len(rows)), key=lambda i: (weights[i], -i))
    [names] = dataset.rows("documents.parquet", own[at : at + 1], _NAMES)
    return Heaviest(
        **rows[at],
        **names,
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
