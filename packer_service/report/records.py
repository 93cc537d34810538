"""The records that ``report``, ``plan`` and the service answer with, each typed once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import Field, create_model

from preshard.packer_service.plan.records import Figures, FillLimit, Mixture
from preshard.packer_service.report.figures import IMAGE_FIGURES, LAYOUT_FIGURES, Figure, Kind


class Spread(Figures):
    """Spread of a measure over packs, except those for which it has no meaning (no image, no allowed pair)."""

    packs: int = Field(description="Packs that have the measure.", examples=[14])
    mean: float | None = Field(description="Mean over packs; null without packs.", examples=[1.031])
    p95: float | None = Field(description="The least value that 95% of the packs do not exceed.", examples=[1.094])
    max: float | None = Field(description="The worst pack's.", examples=[1.12])


class RankLoads(Figures):
    """Distribution of a load over ranks."""

    rank_mean: list[float] = Field(description="Mean load per pack of each rank.", examples=[[48.5, 47.9]])
    imbalance: Spread = Field(description="Largest load of a rank over the mean of all ranks, pack by pack.")


class _Layout(Figures):
    layout: str = Field(examples=["balanced_ring"])
    ring_degree: int = Field(examples=[8])
    packs: int


class _Images(Figures):
    cp_size: int = Field(examples=[8])
    packs: int


_TYPES: dict[Kind, Any] = {
    "mean": float, "spread": Spread, "loads": RankLoads, "ranks": list[float], "ratio": float | None,
}  # fmt: skip


def _with_figures(base: type[Figures], figures: Sequence[Figure]) -> Any:
    """A record with a field for each figure."""
    fields: Any = {each.key: (_TYPES[each.kind], Field(description=each.words)) for each in figures}
    return create_model("Measured", __base__=base, **fields)


class LayoutBalance(_with_figures(_Layout, LAYOUT_FIGURES)):  # type: ignore[misc]
    """One token layout at one ring degree, over packs."""


class ImageBalance(_with_figures(_Images, IMAGE_FIGURES)):  # type: ignore[misc]
    """The image boundaries of one CP size, over packs."""


def mean_of(figure: Figure, row: LayoutBalance | ImageBalance) -> float | None:
    """A figure's mean over packs, or what it is of all packs together."""
    found: Any = getattr(row, figure.key)
    if figure.kind == "loads":
        found = found.imbalance
    return found.mean if figure.has_spread else found


class Balances(Figures):
    """Every stored layout at every ring degree, and the image boundaries of every CP size."""

    balanced_packs: int = Field(description="Packs that the balance is computed from.")
    balance: dict[str, dict[int, LayoutBalance]] = Field(description="By layout and ring degree.")
    images: dict[int, ImageBalance] = Field(description="By CP size.")
    preferred: dict[int, dict[str, int]] = Field(
        description="By ring degree: the packs for which the cost model prefers each layout."
    )


class PackFill(Figures):
    """Fill of packs, what the rest is lost to, and how even the steps are."""

    seq_len: int = Field(description="Tokens of a pack.", examples=[36864])
    fill: float = Field(description="Real tokens over all tokens of the packs; 0 without packs.", examples=[0.934])
    limit: FillLimit | None = Field(
        None, description="What keeps packs from being fuller; null where 95% are full, or where it is not known."
    )
    padding: dict[str, int] = Field(
        description="Padding tokens by cause: `alignment` (behind documents), `image_budget` (packs that images or "
        "their patches need beyond tokens), `packing` (packs beyond all), `remainder` (what keeps the tokens from "
        "filling whole packs).",
    )
    packs_for_tokens: int = Field(description="Packs that the aligned tokens need at least.")
    packs_for_images: int = Field(description="Packs that the images need at least.")
    packs_for_patches: int = Field(description="Packs that the images' patches need at least.")
    straggler_ratio: dict[int, float] = Field(
        description="By data-parallel size: mean over steps of the step's largest cost over its mean cost. A size that "
        "has more ranks than there are packs has no step, and is left out.",
        examples=[{"1": 1.0, "2": 1.0004}],
    )
    cost_percentiles: dict[int, float] = Field(
        description="Cost of packs in GFLOP by percentile, each the cost of a pack that exists."
    )


class EncoderSteps(Figures):
    """Evenness of the vision encoder's work in a step, which is waited for by itself where ranks meet behind it."""

    encoder_straggler: dict[int, float] = Field(
        description="By data-parallel size: the largest work of the vision encoder for a pack of each step, summed up "
        "over steps, over the sum of their means. Empty without images.",
        examples=[{"1": 1.0, "2": 1.0215}],
    )


class PlanFill(PackFill):
    """The same with the totals of a plan."""

    documents: int = Field(description="Documents that are packed.")
    packs: int
    tokens: int = Field(description="Real tokens.")
    padding_tokens: int = Field(description="All other tokens of the packs.")


class RejectReason(Figures):
    """Reason why documents were rejected: one code and one message, whatever values it quotes."""

    code: str = Field(examples=["bad_image"])
    documents: int = Field(description="Documents rejected for this reason.", examples=[12])
    message: str | None = Field(description="The message of the first of them.")
    location: str | None = Field(description="Where the first of them lies: file and row.")
    doc_id: str | None = Field(description="The id of the first of them.")


class Losses(Figures):
    """Losses of packing."""

    rejects: dict[str, int] = Field(description="Rejected documents by code.")
    rejects_by_source: dict[str, dict[str, int]] = Field(description="Rejected documents by source and code.")
    reject_reasons: list[RejectReason] = Field(
        description="The most frequent reasons, at most ten, each with its first reject."
    )
    truncated_tokens: dict[str, int] = Field(description="Tokens lost by truncation, by source.")


class Unread(Figures):
    """Parts of the source that nothing read."""

    unused_columns: dict[str, int] = Field(
        description="Columns of rows that nothing read, each with the number of source files that have it."
    )
    unread_files: dict[str, int] = Field(
        description="Files in the source's folders that are no source, by a pattern of their names."
    )
    filtered: dict[str, int] = Field(description="Rows that `where` left out, by source. They are not rejects.")


class Warned(Figures):
    """Warnings that figures mean something else than they seem to."""

    warnings: list[str] = Field(description="Such as costs that are weighed by the dimensions of another model.")


class Histogram(Figures):
    """Counts of values between edges: bar i counts `edges[i] <= value < edges[i + 1]`, the last one also its end."""

    unit: str = Field(description="What the edges count.", examples=["tokens"])
    edges: list[float] = Field(examples=[[0, 1024, 2048]])
    counts: list[int] = Field(examples=[[118, 31]])


class SourceTotals(Figures):
    """Outcome for the documents of one source."""

    source: str = Field(examples=["text"])
    documents: int = Field(description="Documents that are packed, whole or in part.")
    pieces: int = Field(description="Rows of documents.parquet: every piece and every copy.")
    tokens: int
    images: int = Field(description="Crops.")
    truncated_tokens: int = Field(description="Tokens lost by truncation.")
    rejected: int = Field(description="Rows of rejects.parquet.")
    rejects: dict[str, int] = Field(description="The same by code.")


class Histograms(Figures):
    """Distributions of sizes."""

    document_tokens: Histogram
    document_images: Histogram
    pack_cost: Histogram
    pack_tokens: Histogram
    pack_images: Histogram
    pack_documents: Histogram


class DocumentLengths(Figures):
    """Lengths of packed documents, in tokens, every piece and copy counted."""

    percentiles: dict[int, int] = Field(description="Of some percents; empty without documents.")
    mean: float | None = Field(description="Null without documents.")


class StoredFigures(PlanFill, Losses, Balances):
    """Figures of a whole dataset from its tables: ``figures.json``."""

    sources: list[SourceTotals]
    histograms: Histograms
    lengths: DocumentLengths


class PlanReport(PlanFill, Losses, Mixture, Balances):
    """Figures that packing documents would give: those of `preshard plan --json`."""

    source_documents: int = Field(description="Documents of the source, packed or rejected.")
    rejected: int = Field(description="Documents that cannot be packed.")
    numbered: int = Field(description="Documents that got a number behind their id, which other rows have too.")
    plan_seconds: float = Field(description="Time that planning took.")


class LossTokens(Figures):
    """Tokens under loss, which alone have logits, in packs that were read."""

    packs: int = Field(description="Packs that were read: whole groups of the order of steps, at even distances.")
    mean: float = Field(description="Mean tokens under loss of a pack.")
    straggler: dict[int, float] = Field(
        description="By data-parallel size: mean over steps of the most tokens under loss of a pack over their mean."
    )
    ranks: dict[str, dict[int, float]] = Field(
        description="By layout and ring degree: mean over packs with any of the most tokens under loss of a ring rank "
        "over their mean."
    )


class DatasetReport(PlanReport, EncoderSteps, Unread, Warned):
    """Figures of a packed dataset: those of `preshard report --json`."""

    dataset_id: str
    loss_tokens: LossTokens | None = Field(None, description="Null unless it is asked for: samples are read for it.")
    annotations: dict[str, int] = Field(
        description="Columns that were joined to it later, each with the rows of documents that have a value."
    )
    shards: int
    n_images: int = Field(description="Crops of all packs.")
    seconds: dict[str, float] = Field(description="Time that the job's phases took, from run.json.")
    attempts: int = Field(description="Runs that it took.")
    measured_per_second: float = Field(description="Documents that one task measured per second; 0 when not known.")
