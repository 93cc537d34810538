"""What the tables of a dataset say of it as a whole. Rows of documents pass a row group at a time."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int64

from preshard.packer_service.http.answers.measures import all_balances
from preshard.packer_service.http.dataset.cache import size_of
from preshard.packer_service.http.dataset.reader import ServedDataset, numbers_of
from preshard.packer_service.http.models.datasets import Histogram, Histograms, Overview, SourceTotals
from preshard.packer_service.report.compare import ComparedSide, compared_side
from preshard.packer_service.report.dataset import mixture_of
from preshard.packer_service.report.fill import SUMMED, DocumentSums, LengthCounts, fill_of
from preshard.packer_service.report.losses import count_by, losses_of
from preshard.packer_service.report.records import PackFill, PlanFill

MOST_BITS = 64
"""Binary digits of the largest number that a table holds."""

BARS = 32
"""Bars of a histogram: enough to show its shape, and few enough to be distinguishable on a phone."""


DOCUMENTS = "documents.parquet"
_SHELL_BYTES = 65_536
"""What sums take besides how often each length is there."""

PLACE = ("piece", "copy_number", "epoch")
REJECTS = ("source", "code", "message", "location", "doc_id", "stage")


class WrittenSums(DocumentSums):
    """Sums over the rows of ``documents.parquet``, with what else the figures of a dataset need of them."""

    def __init__(self, lost: pa.Array) -> None:
        super().__init__()
        self.lengths = LengthCounts()
        self.images, self._firsts = Counter[str](), Counter[str]()
        self.length_bits: Int64[np.ndarray, "bits"] = np.zeros(MOST_BITS, np.int64)
        self.image_bits: Int64[np.ndarray, "bits"] = np.zeros(MOST_BITS, np.int64)
        self._lost = lost
        self._left: dict[str, set[str]] = defaultdict(set)

    def add(self, part: pa.Table) -> None:
        super().add(part)
        lengths = numbers_of(part["length"])
        self.lengths.add(lengths)
        self.length_bits += doubling_counts(lengths)
        self.image_bits += doubling_counts(numbers_of(part["n_images"]))
        is_first = pc.equal(pc.add(pc.add(part["piece"], part["copy_number"]), part["epoch"]), 0)
        if len(self._lost):
            of_lost = pc.is_in(part["doc_id"], self._lost)
            for row in part.filter(of_lost).select(["source", "doc_id"]).to_pylist():
                self._left[row["source"]].add(row["doc_id"])
            is_first = pc.and_(is_first, pc.invert(of_lost))
        firsts = part.select(["source", "n_images"]).append_column("first", is_first.cast(pa.int64()))
        sums = firsts.group_by("source", use_threads=False).aggregate([("n_images", "sum"), ("first", "sum")])
        for row in sums.to_pylist():
            self.images[row["source"]] += row["n_images_sum"]
            self._firsts[row["source"]] += row["first_sum"]

    def documents_of(self, source: str) -> int:
        """Documents of a source that are packed, whole or in part: each has one first row, unless rows were lost."""
        return self._firsts[source] + len(self._left.get(source, ()))


def overview(dataset: ServedDataset) -> Overview:
    """PackFill, losses, sources and sizes, kept."""
    return dataset.kept(("overview",), lambda: _overview(dataset), size_of)


def written_sums(dataset: ServedDataset) -> WrittenSums:
    """Sums over all documents, kept."""

    def summed() -> WrittenSums:
        rejects = reject_columns(dataset)
        lost = pc.unique(rejects.filter(pc.equal(rejects["stage"], "write"))["doc_id"])
        sums = WrittenSums(lost)
        for part in dataset.parts(DOCUMENTS, ("source", *SUMMED, *PLACE, *(["doc_id"] if len(lost) else []))):
            sums.add(part)
        return sums

    return dataset.kept(("document_sums",), summed, lambda sums: sums.lengths.counts.nbytes * 2 + _SHELL_BYTES)


def written_fill(dataset: ServedDataset) -> PlanFill:
    """How full the packs are, with the totals of what was packed."""
    return fill_of(written_sums(dataset).totals, dataset.numbers("packs.parquet", "cost"), dataset.config)


def reject_columns(dataset: ServedDataset) -> pa.Table:
    """What figures need of the rejects."""
    return pa.table({name: dataset.column("rejects.parquet", name) for name in REJECTS})


def _overview(dataset: ServedDataset) -> Overview:
    rejects, sums = reject_columns(dataset), written_sums(dataset)
    return Overview(
        **{name: value for name, value in written_fill(dataset) if name in PackFill.model_fields},
        **dict(losses_of([rejects], sums.lost_tokens)),
        sources=_sources(sums, rejects),
        histograms=_histograms(dataset, sums),
    )


def _sources(sums: WrittenSums, rejects: pa.Table) -> list[SourceTotals]:
    codes: dict[str, dict[str, int]] = {}
    for source, code, number in count_by(rejects, "source", "code"):
        codes.setdefault(source, {})[code] = number
    return [
        SourceTotals(
            source=source,
            documents=sums.documents_of(source),
            tokens=sums.tokens[source],
            images=sums.images[source],
            truncated_tokens=sums.truncated[source],
            rejected=sum(codes.get(source, {}).values()),
            rejects=codes.get(source, {}),
        )
        for source in sorted({*sums.tokens, *codes})
    ]


def _histograms(dataset: ServedDataset, sums: WrittenSums) -> Histograms:
    def packs(name: str) -> np.ndarray:
        return dataset.numbers("packs.parquet", name)

    return Histograms(
        document_tokens=doubling_histogram(sums.length_bits, "tokens"),
        document_images=doubling_histogram(sums.image_bits, "crops"),
        pack_cost=histogram(packs("cost"), "GFLOP"),
        pack_tokens=histogram(packs("n_tokens"), "tokens"),
        pack_images=histogram(packs("n_images"), "crops"),
        pack_documents=histogram(packs("n_documents"), "documents"),
    )


def compared(dataset: ServedDataset) -> ComparedSide:
    """The same figures as those of `preshard report --against`, from the dataset's tables."""
    return dataset.kept(("compared",), lambda: _compared(dataset), size_of)


def _compared(dataset: ServedDataset) -> ComparedSide:
    config, counts, sums = dataset.config, dataset.manifest.counts, written_sums(dataset)
    return compared_side(
        dataset.name,
        source_documents=counts.source_documents,
        documents=counts.documents,
        fill=written_fill(dataset),
        losses=losses_of([reject_columns(dataset)], sums.lost_tokens),
        shares=mixture_of(None, sums, config, counts.left_out).shares,
        balances=all_balances(dataset),
        lengths=sums.lengths,
        configuration=dataset.manifest.config,
    )


def histogram(values: np.ndarray, unit: str) -> Histogram:
    """Bars of equal width over the values' range; for whole numbers, at least one wide."""
    if not len(values):
        return Histogram(unit=unit, edges=[0, 1], counts=[0])
    low, high = values.min(), values.max()
    if np.issubdtype(values.dtype, np.integer):
        width = max(-(-int(high - low + 1) // BARS), 1)
        edges = np.arange(int(low), int(high) + width + 1, width)[: -(-int(high - low + 1) // width) + 1]
    else:
        edges = np.linspace(low, high if high > low else low + 1, BARS + 1)
    counts, _ = np.histogram(values, edges)
    return Histogram(unit=unit, edges=edges.tolist(), counts=counts.tolist())


def doubling_counts(values: Int64[np.ndarray, "values"]) -> Int64[np.ndarray, "bits"]:
    """How many values have each number of binary digits. Counts of parts add up."""
    return np.bincount(np.frexp(values.astype(np.float64))[1], minlength=MOST_BITS)


def doubling_histogram(counts: Int64[np.ndarray, "bits"], unit: str) -> Histogram:
    """Bars that double in width: for lengths, some of which are a thousand times others.

    Args:
        counts: of :func:`doubling_counts`.
        unit: what the values count.
    """
    top = int(np.flatnonzero(counts).max(initial=0))
    edges = [0, *(1 << power for power in range(top + 1))]
    return Histogram(unit=unit, edges=edges, counts=counts[: top + 1].tolist())
