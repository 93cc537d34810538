"""The figures of ``report`` and ``plan``, and comparisons of them, as tables for a person; and plain text."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar, cast

from pydantic import BaseModel
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from preshard.packer_service.plan.records import FillLimit, Mixture
from preshard.packer_service.report.compare import ComparedRow, Comparison
from preshard.packer_service.report.figures import FLOOR, IMAGE_FIGURES, LAYOUT_FIGURES, Figure, shown
from preshard.packer_service.report.records import (
    Balances,
    DatasetReport,
    ImageBalance,
    LayoutBalance,
    LossTokens,
    PlanReport,
    RejectReason,
    mean_of,
)
from preshard.schemas.files.printed import cut, printable, several

SHOWN_CHARACTERS = 300
"""Longest message of a reject that is shown; rejects.parquet has all of it."""

LONGEST = 60
"""Characters of a value of the configuration that are shown."""

MULTIPLE = 10
"""Times as much from which a change is shown as a multiple."""

TOP_REASONS, REASON_CHARACTERS = 3, 100
"""Reasons in the line of a job that rejected too many rows, and characters of each."""

SHOWN_NAMES = 20
"""Columns and patterns of files that are named; the manifest has all of them."""


def print_report(report: PlanReport, console: Console | None = None, rejects_file: str | None = None) -> None:
    """Prints the figures as tables for a person.

    Args:
        report: the figures.
        console: where to; by default, standard output.
        rejects_file: where every reject can be seen.
    """
    report = cleaned(report)
    to = console or Console(width=None if Console().is_terminal else 110, highlight=False)
    say = saying(to)
    say(
        f"{several(report.documents, 'document')} in {several(report.packs, 'pack')} of "
        f"{report.seq_len:,} tokens: {report.tokens:,} tokens, {report.padding_tokens:,} padding, "
        f"fill {report.fill:.2%}"
    )
    if report.limit is not None:
        say(limit_line(report.limit))
    causes = ", ".join(f"{cause} {tokens:,}" for cause, tokens in report.padding.items())
    say(f"padding by cause: {causes}")
    rejects = ", ".join(f"{code} {number}" for code, number in report.rejects.items())
    say(f"rejected: {rejects or 'none'}")
    for source, codes in report.rejects_by_source.items():
        say(f"  {source}: " + ", ".join(f"{code} {number}" for code, number in codes.items()))
    for line in reason_lines(report.reject_reasons, report.rejected, rejects_file):
        say(line)
    for line in (*numbered_lines(report.numbered), *mixture_lines(report)):
        say(line)
    truncated = ", ".join(f"{source} {tokens:,}" for source, tokens in report.truncated_tokens.items())
    say(f"truncated tokens: {truncated or 'none'}")
    stragglers = ", ".join(f"{size}: {ratio:.4f}" for size, ratio in report.straggler_ratio.items())
    say(f"straggler ratio by data-parallel size: {stragglers or 'n/a: too few packs'}")
    if isinstance(report, DatasetReport):
        if report.encoder_straggler:
            encoder = ", ".join(f"{size}: {ratio:.4f}" for size, ratio in report.encoder_straggler.items())
            say(f"encoder straggler by data-parallel size: {encoder}")
        if report.loss_tokens is not None:
            for line in loss_lines(report.loss_tokens):
                say(line)
        if report.annotations:
            say(f"columns joined later, by documents that have a value: {_most(report.annotations)}")
        for line in unread_lines(report.unused_columns, report.unread_files, report.filtered):
            say(line)
        say(_cost(report))
        for warning in report.warnings:
            say(f"warning: {warning}")
    print_balances(report, to)


def print_balances(balances: Balances, to: Console) -> None:
    """Prints the tables of layouts and image boundaries, each with what its columns mean."""
    say = saying(to)
    say(
        f"balance, means over {several(balances.balanced_packs, 'pack')}; critical paths as multiples of the tile floor"
    )
    layouts = [
        ((scheme, str(degree)), row) for scheme, degrees in balances.balance.items() for degree, row in degrees.items()
    ]
    to.print(fitted(_table(("layout", "ring degree"), LAYOUT_FIGURES, layouts), to))
    for line in legend((FLOOR, *shown(LAYOUT_FIGURES, "report"))):
        say(line)
    for degree, counts in balances.preferred.items():
        if degree > 1:
            of = ", ".join(f"{scheme} {number}" for scheme, number in counts.items())
            say(f"packs for which the cost model prefers, at ring degree {degree}: {of}")
    images = [((f"cp {size}",), row) for size, row in balances.images.items()]
    to.print(fitted(_table(("image boundaries",), IMAGE_FIGURES, images), to))
    for line in legend(shown(IMAGE_FIGURES, "report")):
        say(line)


def loss_lines(loss: LossTokens) -> list[str]:
    """Lines on the tokens under loss of the packs of a step and of the ranks of a pack."""
    stragglers = ", ".join(f"{size}: {ratio:.3f}" for size, ratio in loss.straggler.items())
    lines = [
        f"tokens under loss: {loss.mean:,.0f} a pack, of {several(loss.packs, 'pack')} that were read",
        f"  most of a step's packs over their mean, by data-parallel size: {stragglers or 'n/a: too few packs'}",
    ]
    for scheme, degrees in loss.ranks.items():
        ratios = ", ".join(f"{degree}: {ratio:.3f}" for degree, ratio in degrees.items() if degree > 1)
        lines += [f"  most of a pack's ranks over their mean, {scheme} by ring degree: {ratios}"] * bool(ratios)
    return lines


def limit_line(limit: FillLimit) -> str:
    """Line on the limit that keeps packs from being fuller."""
    return f"why packs are not fuller: {limit.message}"


def reason_lines(reasons: Sequence[RejectReason], rejected: int, rejects_file: str | None = None) -> list[str]:
    """The most frequent reasons of rejects, each with an example, and where all rejects are; nothing without any."""
    if not reasons:
        return []
    lines = ["why, the most frequent reason first, each with its first row:"]
    for reason in reasons:
        where = f" ({reason.location})" if reason.location else ""
        lines.append(f"  {reason.documents:,} {reason.code}: {_message(reason, SHOWN_CHARACTERS)}{where}")
    others = rejected - sum(reason.documents for reason in reasons)
    if others > 0:
        lines.append(f"  {others:,} for other reasons")
    return [*lines, f"  every reject: {rejects_file}"] if rejects_file else lines


def numbered_lines(numbered: int) -> list[str]:
    """Line on the number of ids that got a number; nothing if none did."""
    if not numbered:
        return []
    return [f"repeated ids: {several(numbered, 'row')} numbered (ID#2, ID#3 ...)"]


def too_many_rejects(reasons: Sequence[RejectReason], rejected: int, rows: int, allowed: float) -> str:
    """A line for a job that rejected a larger share of its rows than was allowed: the most frequent reasons, and what
    to do.
    """
    shown = "; ".join(
        f"{reason.documents:,} {reason.code} ({_message(reason, REASON_CHARACTERS)})"
        for reason in reasons[:TOP_REASONS]
    )
    were = "was" if rejected == 1 else "were"
    return (
        f"{rejected:,} of {rows:,} rows ({rejected / rows:.2%}) {were} rejected, more than --max-rejects {allowed:g}: "
        f"{shown}; mend the rows, or allow more with --max-rejects {-(-100 * rejected // rows) / 100:g}"
    )


def lost_files(lost: int, reasons: Sequence[RejectReason]) -> str:
    """A line for a job that lost rows of damaged files of which nobody knows how many they are."""
    files = "a file is damaged" if lost == 1 else f"files are damaged in {lost:,} places"
    shown = "".join(f" ({reason.location}: {_message(reason, REASON_CHARACTERS)})" for reason in reasons[:1])
    what = f"{files}, and nobody knows how many rows were lost with it{shown}"
    return f"{what}; mend {'it' if lost == 1 else 'them'}, or accept the loss with --allow-lost-files"


def _message(reason: RejectReason, characters: int) -> str:
    """Message of a reject, on one line of so many characters."""
    words = " ".join((reason.message or "no message").split())
    return words if len(words) <= characters else f"{words[:characters]}..."


def unread_lines(columns: Mapping[str, int], files: Mapping[str, int], filtered: Mapping[str, int]) -> list[str]:
    """Lines on what of the source nothing read: rows that ``where`` left out, columns of rows, files in its folders."""
    lines = [f"rows left out by --where, by source: {_most(filtered)}"] if filtered else []
    lines += [f"columns that nothing read, by number of files: {_most(columns)}"] if columns else []
    return [*lines, f"files not read as rows: {_most(files)}"] if files else lines


def _most(counts: Mapping[str, int]) -> str:
    """The largest counts."""
    ordered = sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))
    shown = [f"{printable(name)} ({number:,})" for name, number in ordered[:SHOWN_NAMES]]
    return ", ".join([*shown, *([f"and {len(ordered) - SHOWN_NAMES} more"] if len(ordered) > SHOWN_NAMES else [])])


def mixture_lines(mixture: Mixture) -> list[str]:
    """Share of each source beside what was asked, as lines for a person; nothing where no weight was asked for."""
    shares, phases = mixture.shares, ["curriculum, as shares of each phase's tokens:"] if mixture.phases else []
    for phase in mixture.phases:
        got = [
            f"{name} {share:.2%} (asked {phase.asked[name]:.2%})"
            for name, share in list(phase.shares.items())[:SHOWN_NAMES]
        ]
        phases.append(f"  until {phase.until:.4g}: {', '.join(got)}")
    if all(share.weight == 1 for share in shares.values()):
        return phases
    lines = [f"mixture, as shares of all tokens; {mixture.left_out:,} documents left out:"]
    for source, share in list(shares.items())[:SHOWN_NAMES]:
        loss = "" if share.loss_share is None else f", {share.loss_share:.2%} of the loss weight"
        lines.append(
            f"  {source}: weight {share.weight:g}, asked {_percent(share.asked)}, got {share.share:.2%}"
            f" ({several(share.tokens, 'token')} of {several(share.documents, 'document')}{loss})"
        )
    if len(shares) > SHOWN_NAMES:
        lines.append(f"  and {several(len(shares) - SHOWN_NAMES, 'more source')}")
    return [*lines, *phases]


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.2%}"


def _cost(report: DatasetReport) -> str:
    """Cost of the dataset: measuring and writing over all tasks of all runs, planning in the last run."""
    seconds = {name.removesuffix("_seconds"): f"{value:,.1f} s" for name, value in report.seconds.items()}
    rate = several(round(report.measured_per_second), "document")
    return (
        f"cost: measuring {seconds.get('measure_task', 'unknown')} of tasks ({rate} per second of one), "
        f"planning {seconds.get('plan', 'unknown')}, writing "
        f"{seconds.get('write_task', 'unknown')} of tasks; runs: {report.attempts}"
    )


def legend(figures: Iterable[Figure]) -> list[str]:
    """Lines below a table: what its columns mean."""
    return [f"{figure.label}: {figure.explain}" for figure in figures]


def _table(
    names: Sequence[str],
    figures: Sequence[Figure],
    rows: Sequence[tuple[Sequence[str], LayoutBalance | ImageBalance]],
) -> Table:
    """The figures that ``report`` shows, then the loads of each rank."""
    columns, ranks = shown(figures, "report"), [figure for figure in figures if figure.of_ranks]
    table = Table(*names, *(figure.label for figure in columns), *(figure.of_ranks for figure in ranks))
    for place, row in rows:
        loads = (getattr(row, figure.key).rank_mean for figure in ranks)
        cells = (_value(figure, mean_of(figure, row)) for figure in columns)
        table.add_row(*place, *cells, *(" ".join(map(_load, load)) for load in loads))
    table.columns[0].no_wrap = True  # names of layouts differ in their ends
    for column in table.columns[1:]:
        column.min_width = len("1.000")
    return table


def fitted(table: Table, to: Console, wide: int = 80) -> Table:
    """A table that a terminal of fewer columns than ``wide`` shows whole: with fewer lines, and long words folded."""
    if to.width < wide:
        table.box, table.pad_edge, table.collapse_padding = box.SIMPLE_HEAD, False, True
        for column in table.columns:
            column.overflow = "fold"
    return table


def _value(figure: Figure, value: float | None) -> str:
    if value is None:
        return "none"
    return f"{value:.3f}" if figure.unit in ("ratio", "share") else f"{value:,.0f}"


def _load(load: float) -> str:
    return f"{load:,.0f}" if load >= 100 else f"{round(load, 1):g}"


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Prints the keys that differ, and the figures of both with their change."""
    comparison = cleaned(comparison)
    to = console or Console(width=None if Console().is_terminal else 120, highlight=False)
    say = saying(to)
    say(f"first: {comparison.first}")
    say(f"second: {comparison.second}")
    for each in comparison.configuration:
        say(f"  {each.key}: {_short(each.first)} -> {_short(each.second)}")
    table = Table("", "", "first", "second", "change", "")
    for section, rows in groupby(comparison.rows, attrgetter("section")):
        known = [row for row in rows if (row.first, row.second) != (None, None)]
        for number, row in enumerate(known):
            cells = (
                section if number == 0 else "",
                row.name,
                *map(partial(_compared, row), (row.first, row.second)),
            )
            table.add_row(*map(Text, cells), _change(row), row.verdict or "", end_section=number == len(known) - 1)
    to.print(fitted(table, to))


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _compared(row: ComparedRow, value: float | None) -> str:
    if value is None:
        return ""
    if row.unit == "share":
        return f"{value:.2%}"
    if row.unit == "ratio":
        return f"{value:.3f}"
    return f"{value:,.0f}"


def _change(row: ComparedRow) -> str:
    """Change in percent, and as a multiple where it is many times as much."""
    if not row.change:
        return ""
    return f"x {row.change + 1:.3g}" if row.change >= MULTIPLE - 1 else f"{row.change:+.1%}"


T = TypeVar("T")


def saying(console: Console) -> Callable[[str], None]:
    """Prints a line as it is, since the name of a source may look like markup, and only so much of it."""
    return lambda text: console.print(cut(text), soft_wrap=True, markup=False)


def cleaned(value: T) -> T:
    """Figures whose texts and names are as they may be printed: they come from files of others."""
    found: Any = value
    if isinstance(value, str):
        found = printable(value)
    elif isinstance(value, BaseModel):
        found = value.model_copy(update={name: cleaned(each) for name, each in value})
    elif isinstance(value, dict):
        found = {cleaned(name): cleaned(each) for name, each in value.items()}
    elif isinstance(value, list):
        found = [cleaned(each) for each in value]
    return cast("T", found)
