"""``figures.json``: what the tables of a dataset say of all of it, computed once, when the dataset is finished.

Nothing in it depends on the machine, so that the file has the same bytes wherever it is written: sums are of integers
or decimals, or taken in the order of the rows.
"""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Int64

from preshard.packer_service.report.fill import PlanTotals, fill_of
from preshard.packer_service.report.losses import losses_of
from preshard.packer_service.report.measures import all_balances
from preshard.packer_service.report.records import (
    DocumentLengths,
    Histogram,
    Histograms,
    Losses,
    SourceTotals,
    StoredFigures,
)
from preshard.packer_service.report.run import decode_strictly
from preshard.packer_service.report.tables import numbers_of, open_measures, read_numbers, table_parts
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.manifest_parts import stored_config
from preshard.schemas.encode import encode_json
from preshard.schemas.errors import FiguresInvalid
from preshard.schemas.manifest import FIGURES, LARGEST_FIGURES, FiguresEntry, ManifestHead

PERCENTS = (5, 50, 95, 100)
"""Percentiles of the documents' lengths."""

BARS, MOST_BITS = 32, 64
"""Bars of a histogram: enough to show its shape, and few enough to be distinguishable on a phone. Binary digits of the
largest number that a table holds."""

PACKS, DOCUMENTS, REJECTS = "packs.parquet", "documents.parquet", "rejects.parquet"

SUMMED = ("length", "aligned_length", "n_images", "n_patches", "truncated_tokens")
PLACE = ("piece", "copy_number", "epoch")
REJECT_COLUMNS = ("doc_id", "source", "location", "code", "message")


def write_figures(folder: Folder, config: PackConfig, n_packs: int) -> FiguresEntry:
    """Writes the figures of tables that are written; returns what the manifest says of the file.

    Raises:
        TableInvalid: a table is not one of its kind.
    """
    data = encode_json(compute_figures(folder, config, n_packs))
    folder.write(FIGURES, data)
    return FiguresEntry(bytes=len(data), sha256=hashlib.sha256(data).hexdigest())


def read_figures(folder: Folder, manifest: ManifestHead) -> StoredFigures:
    """The figures of a dataset.

    Raises:
        FiguresInvalid: they are missing, or not those that the manifest names.
    """
    if not folder.is_file(FIGURES):
        raise FiguresInvalid(FIGURES, "is not there")
    return decode_figures(folder.read(FIGURES, LARGEST_FIGURES), manifest.figures, stored_config(manifest))


def decode_figures(data: bytes, entry: FiguresEntry, config: PackConfig) -> StoredFigures:
    """The figures in a file that the manifest names, of everything that the configuration stores.

    Raises:
        FiguresInvalid: it is another file, or it does not hold them.
    """
    if len(data) != entry.bytes:
        raise FiguresInvalid(FIGURES, f"has {len(data)} bytes; the manifest says {entry.bytes}")
    if (digest := hashlib.sha256(data).hexdigest()) != entry.sha256:
        raise FiguresInvalid(FIGURES, f"has the SHA-256 {digest}; the manifest says {entry.sha256}")
    try:
        figures = decode_strictly(StoredFigures, data)
    except ValueError as error:
        raise FiguresInvalid(FIGURES, str(error)) from None
    degrees = {*config.ring_degrees}
    has = [{*figures.balance}, *map(set, figures.balance.values()), {*figures.preferred}, {*figures.images}]
    if has != [{*config.layouts}, *(degrees for _ in figures.balance), degrees, {*config.cp_sizes}]:
        raise FiguresInvalid(FIGURES, "lacks a layout, ring degree or CP size of the configuration, or has another")
    if figures.lengths.mean is not None and {*figures.lengths.percentiles} != {*PERCENTS}:
        raise FiguresInvalid(FIGURES, f"lengths.percentiles are not those of {PERCENTS} percent")
    return figures


def compute_figures(folder: Folder, config: PackConfig, n_packs: int) -> StoredFigures:
    """The figures, from the tables, which are read in parts.

    Args:
        folder: the dataset.
        config: its configuration.
        n_packs: packs that it has.

    Raises:
        TableInvalid: a table is not one of its kind.
    """
    lost = [
        part["doc_id"].filter(pc.equal(part["stage"], "write"))
        for part in table_parts(folder, REJECTS, ["doc_id", "stage"])
    ]
    sums = DocumentSums(pc.unique(pa.chunked_array([chunk for part in lost for chunk in part.chunks], pa.string())))
    for part in table_parts(folder, DOCUMENTS, sums.columns):
        sums.add(part)
    losses = losses_of(table_parts(folder, REJECTS, REJECT_COLUMNS), sums.lost_tokens)
    with open_measures(folder, config, n_packs) as measures:
        balances = all_balances(measures)
    cost, tokens, images, documents = read_numbers(folder, PACKS, "cost", "n_tokens", "n_images", "n_documents")
    found = (fill_of(sums.totals, cost, config), losses, balances)
    return StoredFigures(
        **{name: value for figures in found for name, value in figures},
        sources=_sources(sums, losses),
        histograms=Histograms(
            document_tokens=doubling_histogram(sums.length_bits, "tokens"),
            document_images=doubling_histogram(sums.image_bits, "crops"),
            pack_cost=histogram(cost, "GFLOP"),
            pack_tokens=histogram(tokens, "tokens"),
            pack_images=histogram(images, "crops"),
            pack_documents=histogram(documents, "documents"),
        ),
        lengths=sums.lengths(),
    )


class DocumentSums:
    """Sums over the rows of ``documents.parquet``, which come in parts.

    Args:
        lost: ids of documents of which something was lost in writing.

    Attributes:
        pieces, tokens, images, truncated: rows, real tokens, crops and lost tokens by source.
        length_bits, image_bits: how many rows have lengths and crops of each number of binary digits.
    """

    def __init__(self, lost: pa.Array) -> None:
        self.pieces, self.tokens, self.images, self.truncated = (Counter[str]() for _ in range(4))
        self.length_bits: Int64[np.ndarray, "bits"] = np.zeros(MOST_BITS, np.int64)
        self.image_bits: Int64[np.ndarray, "bits"] = np.zeros(MOST_BITS, np.int64)
        self._sums, self._firsts, self._lengths = Counter[str](), Counter[str](), np.zeros(0, np.int64)
        self._lost, self._left = lost, defaultdict[str, set[str]](set)

    @property
    def columns(self) -> list[str]:
        """Names of the columns that the parts have."""
        return ["source", *SUMMED, *PLACE, *(["doc_id"] if len(self._lost) else [])]

    def add(self, part: pa.Table) -> None:
        """Adds some rows."""
        lengths = numbers_of(part["length"])
        self.length_bits += doubling_counts(lengths)
        self.image_bits += doubling_counts(numbers_of(part["n_images"]))
        self._count(lengths)
        is_first = pc.equal(pc.add(pc.add(part["piece"], part["copy_number"]), part["epoch"]), 0)
        if len(self._lost):
            of_lost = pc.is_in(part["doc_id"], self._lost)
            for row in part.filter(of_lost).select(["source", "doc_id"]).to_pylist():
                self._left[row["source"]].add(row["doc_id"])
            is_first = pc.and_(is_first, pc.invert(of_lost))
        summed = part.select(["source", *SUMMED]).append_column("first", is_first.cast(pa.int64()))
        wanted = [([], "count_all"), *((name, "sum") for name in (*SUMMED, "first"))]
        for row in summed.group_by("source", use_threads=False).aggregate(wanted).to_pylist():
            source = row["source"]
            self.pieces[source] += row["count_all"]
            self.tokens[source] += row["length_sum"]
            self.images[source] += row["n_images_sum"]
            self.truncated[source] += row["truncated_tokens_sum"]
            self._firsts[source] += row["first_sum"]
            self._sums.update({name: row[f"{name}_sum"] for name in SUMMED})

    def _count(self, lengths: Int64[np.ndarray, "some"]) -> None:
        """Counts each length: as many numbers as the longest document has tokens, however many documents."""
        counts = np.bincount(lengths, minlength=len(self._lengths))
        counts[: len(self._lengths)] += self._lengths
        self._lengths = counts

    @property
    def totals(self) -> PlanTotals:
        """Totals that the fill of packs needs."""
        return PlanTotals(
            documents=self.pieces.total(),
            tokens=self._sums["length"],
            aligned=self._sums["aligned_length"],
            images=self._sums["n_images"],
            patches=self._sums["n_patches"],
        )

    @property
    def lost_tokens(self) -> dict[str, int]:
        """Truncated tokens of each source that lost any."""
        return {source: tokens for source, tokens in self.truncated.items() if tokens}

    def documents_of(self, source: str) -> int:
        """Documents of a source that are packed, whole or in part: each has one first row, unless rows were lost."""
        return self._firsts[source] + len(self._left.get(source, ()))

    def lengths(self) -> DocumentLengths:
        """A percentile is the length of the document at this place in ascending order."""
        n, until = self.pieces.total(), np.cumsum(self._lengths)
        places = {percent: (n - 1) * percent // 100 for percent in PERCENTS if n}
        return DocumentLengths(
            percentiles={percent: int(np.searchsorted(until, at, side="right")) for percent, at in places.items()},
            mean=self._sums["length"] / n if n else None,
        )


def _sources(sums: DocumentSums, losses: Losses) -> list[SourceTotals]:
    return [
        SourceTotals(
            source=source,
            documents=sums.documents_of(source),
            pieces=sums.pieces[source],
            tokens=sums.tokens[source],
            images=sums.images[source],
            truncated_tokens=sums.truncated[source],
            rejected=sum(losses.rejects_by_source.get(source, {}).values()),
            rejects=losses.rejects_by_source.get(source, {}),
        )
        for source in sorted({*sums.tokens, *losses.rejects_by_source})
    ]


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
    """Number of values with each number of binary digits. Counts of parts add up."""
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
