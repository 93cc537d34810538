"""Two datasets or plans side by side: the same figures of both, named once for command and service."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError

from preshard.packer_service.plan.records import Figures, SourceShare
from preshard.packer_service.report.dataset import open_dataset, report_figures
from preshard.packer_service.report.figures import IMAGE_FIGURES, LAYOUT_FIGURES, Better, Figure, shown
from preshard.packer_service.report.records import (
    Balances,
    DocumentLengths,
    ImageBalance,
    LayoutBalance,
    Losses,
    PlanFill,
    PlanReport,
    mean_of,
)
from preshard.packer_service.report.stored import read_figures
from preshard.schemas.errors import ConfigError
from preshard.schemas.files.printed import several, without_secrets
from preshard.schemas.files.validation import first_violation

LENGTHS = {5: "5% are at most", 50: "median", 95: "95% are at most", 100: "longest"}
"""Percentiles of documents' lengths, by what they are called."""

MOST_SOURCES = 50
"""Sources that are compared, those with most tokens first."""

COUNTED = ("rejects", "sources")
"""Sections in which what one side does not name is nothing, and not unknown."""

SAME = 1e-9
"""Relative difference below which two values count as equal."""


class ComparedFigure(Figures):
    """One figure of a dataset or plan."""

    section: str = Field(examples=["padding"])
    name: str = Field(examples=["alignment"])
    unit: str = Field(description="`share` is a part of 1, `ratio` a multiple of the best possible.")
    value: float | None = Field(description="Null where it has no meaning.")
    better: Better | None = Field(description="Which of two values is better; null where neither is.")


class ComparedSide(Figures):
    """Everything of one dataset or plan that is compared with another: one column of a comparison."""

    name: str
    figures: list[ComparedFigure]
    configuration: dict[str, Any] = Field(description="The configuration, keys with dots; empty where not known.")


class ComparedRow(Figures):
    """A figure of both."""

    section: str
    name: str
    unit: str
    first: float | None
    second: float | None
    change: float | None = Field(description="Second over first, less 1; null where there is nothing to divide by.")
    verdict: Literal["better", "worse", "same"] | None = Field(
        description="The second's; null where neither is better."
    )


class ChangedKey(Figures):
    """A key of the configuration that differs; null where it is not known."""

    key: str
    first: Any
    second: Any


class Comparison(Figures):
    """Two datasets or plans side by side: the figures of `preshard report A --against B --json`."""

    first: str
    second: str
    configuration: list[ChangedKey]
    rows: list[ComparedRow]


def compare(first: ComparedSide, second: ComparedSide) -> Comparison:
    """Joins two sides, in the order of the first; what only the second has comes last in its section."""
    left, right = ({(each.section, each.name): each for each in side.figures} for side in (first, second))
    sections = list(dict.fromkeys(section for section, _ in (*left, *right)))
    keys = sorted(dict.fromkeys((*left, *right)), key=lambda key: sections.index(key[0]))
    return Comparison(
        first=first.name,
        second=second.name,
        configuration=_changed(first.configuration, second.configuration),
        rows=[_row(left.get(key), right.get(key)) for key in keys],
    )


def _row(left: ComparedFigure | None, right: ComparedFigure | None) -> ComparedRow:
    of = left or right
    assert of is not None
    absent = 0 if of.section in COUNTED else None
    first, second = (each.value if each else absent for each in (left, right))
    change = second / first - 1 if first and second is not None else None
    verdict = None
    if of.better and first is not None and second is not None:
        is_same = abs(second - first) <= SAME * max(abs(first), abs(second))
        verdict = "same" if is_same else "better" if (second < first) == (of.better == "less") else "worse"
    return ComparedRow(
        section=of.section, name=of.name, unit=of.unit, first=first, second=second, change=change, verdict=verdict
    )


def _changed(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[ChangedKey]:
    if not (first and second):
        return []
    return [
        ChangedKey(key=key, first=first.get(key), second=second.get(key))
        for key in dict.fromkeys((*first, *second))
        if first.get(key) != second.get(key)
    ]


def compared_side(
    name: str,
    *,
    source_documents: int,
    documents: int,
    fill: PlanFill,
    losses: Losses,
    shares: Mapping[str, SourceShare],
    balances: Balances,
    lengths: DocumentLengths | None = None,
    configuration: Mapping[str, Any] | None = None,
) -> ComparedSide:
    """Figures of one dataset or plan to be compared.

    Args:
        name: what it is called.
        source_documents: documents of the source.
        documents: those of them that are packed.
        fill, losses, shares, balances: its figures.
        lengths: how long packed documents are; None where that is not known.
        configuration: sections and keys as the manifest has them.
    """
    found = [
        *_contents(source_documents, documents, fill),
        *_lengths(lengths),
        *_padding(fill),
        *_lost(losses),
        *_sources(shares),
        *_steps(fill),
        *balance_entries(balances),
    ]
    figures = [
        ComparedFigure(section=section, name=label, unit=unit, value=value, better=better)
        for section, label, unit, value, better in found
    ]
    return ComparedSide(name=name, figures=figures, configuration=dict(_flat(configuration or {})))


Entry = tuple[str, str, str, float | None, Better | None]
"""Section, name, unit, value, and which of two is better."""


def _contents(source_documents: int, documents: int, fill: PlanFill) -> Iterator[Entry]:
    yield "contents", "documents of the source", "documents", source_documents, None
    yield "contents", "packed documents", "documents", documents, None
    yield "contents", "tokens", "tokens", fill.tokens, None
    yield "contents", "packs", "packs", fill.packs, None
    yield "contents", "tokens of a pack", "tokens", fill.seq_len, None


def _lengths(lengths: DocumentLengths | None) -> Iterator[Entry]:
    if lengths is None or lengths.mean is None:
        return
    for percent, label in LENGTHS.items():
        yield "lengths", label, "tokens", lengths.percentiles[percent], None
    yield "lengths", "mean", "tokens", lengths.mean, None


def _padding(fill: PlanFill) -> Iterator[Entry]:
    yield "padding", "fill", "share", fill.fill, "more"
    room = fill.packs * fill.seq_len
    for cause, tokens in fill.padding.items():
        yield "padding", cause, "share", tokens / room if room else None, "less"


def _lost(losses: Losses) -> Iterator[Entry]:
    yield "rejects", "all", "documents", sum(losses.rejects.values()), "less"
    for code, number in losses.rejects.items():
        yield "rejects", code, "documents", number, "less"
    yield "rejects", "truncated tokens", "tokens", sum(losses.truncated_tokens.values()), "less"


def _sources(shares: Mapping[str, SourceShare]) -> Iterator[Entry]:
    for source, share in sorted(shares.items(), key=lambda entry: -entry[1].tokens)[:MOST_SOURCES]:
        yield "sources", source, "share", share.share, None


def _steps(fill: PlanFill) -> Iterator[Entry]:
    for size, ratio in fill.straggler_ratio.items():
        yield "steps", f"straggler ratio, {several(size, 'pack')} a step", "ratio", ratio, "less"
    for percent, cost in fill.cost_percentiles.items():
        yield "steps", f"cost of a pack, {percent}%", "GFLOP", cost, None


def balance_entries(balances: Balances) -> Iterator[Entry]:
    """Figures of layouts and image boundaries to be compared, where there is more than one rank."""
    for scheme, degrees in balances.balance.items():
        for degree, layout in degrees.items():
            if degree > 1:
                yield from _compared("balance", f"{scheme}, ring {degree}", LAYOUT_FIGURES, layout)
    for size, images in balances.images.items():
        if size > 1:
            yield from _compared("images", f"CP {size}", IMAGE_FIGURES, images)


def _compared(section: str, at: str, figures: Sequence[Figure], row: LayoutBalance | ImageBalance) -> Iterator[Entry]:
    for figure in shown(figures, "comparison"):
        yield section, f"{at}: {figure.label}", figure.unit, mean_of(figure, row), figure.better


def _flat(section: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in section.items():
        if isinstance(value, Mapping) and key != "mixture":
            yield from _flat(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def compare_locations(first: str, second: str) -> Comparison:
    """Two datasets or plans side by side.

    Args:
        first, second: a dataset's folder, or a file with the answer of ``preshard plan --json`` or ``report --json``.

    Raises:
        ConfigError: there is no such folder or file, or it is neither.
        FormatError: a dataset is broken.
    """
    return compare(_side(first), _side(second))


def _side(location: str) -> ComparedSide:
    if location.endswith(".json") and Path(location).is_file():
        return _of_report(location, _read_report(Path(location)))
    folder, manifest = open_dataset(location)
    figures = read_figures(folder, manifest)
    return _of_report(location, report_figures(folder, manifest, figures), figures.lengths, manifest.config)


def _of_report(
    name: str,
    report: PlanReport,
    lengths: DocumentLengths | None = None,
    configuration: dict[str, object] | None = None,
) -> ComparedSide:
    return compared_side(
        without_secrets(name),
        source_documents=report.source_documents,
        documents=report.documents,
        fill=report,
        losses=report,
        shares=report.shares,
        balances=report,
        lengths=lengths,
        configuration=configuration,
    )


def _read_report(file: Path) -> PlanReport:
    """
    Raises:
        ConfigError: the file holds no figures of ours.
    """
    try:
        return PlanReport.model_validate_json(file.read_bytes())
    except ValidationError as error:
        raise ConfigError(
            f"{file}: is not the output of `preshard plan --json` or `report --json` ({first_violation(error)})"
        ) from None
