"""A comparison as text for a person."""

from __future__ import annotations

from functools import partial

from rich.console import Console
from rich.table import Table
from rich.text import Text

from preshard.packer_service.report.comparison.compare import ComparedRow, Comparison, of_section
from preshard.packer_service.report.plain import plain

LONGEST = 60
"""Characters of a value of the configuration that are shown."""


MULTIPLE = 10
"""Times as much from which a change is shown as a multiple."""


def print_comparison(comparison: Comparison, console: Console | None = None) -> None:
    """Prints the keys that differ, and the figures of both with their change."""
    to = console or Console(width=None if Console().is_terminal else 120, highlight=False)
    say = partial(to.print, soft_wrap=True, markup=False)
    say(f"first: {plain(comparison.first)}")
    say(f"second: {plain(comparison.second)}")
    for each in comparison.configuration:
        say(f"  {plain(each.key)}: {_short(each.first)} -> {_short(each.second)}")
    table = Table("", "", "first", "second", "change", "")
    for section, rows in of_section(comparison.rows).items():
        known = [row for row in rows if (row.first, row.second) != (None, None)]
        for number, row in enumerate(known):
            cells = (
                section if number == 0 else "",
                plain(row.name),
                *map(partial(_value, row), (row.first, row.second)),
            )
            table.add_row(*map(Text, cells), _change(row), row.verdict or "", end_section=number == len(known) - 1)
    to.print(table)


def _short(value: object) -> str:
    text = plain(str(value))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


def _value(row: ComparedRow, value: float | None) -> str:
    if value is None:
        return ""
    if row.unit == "share":
        return f"{value:.2%}"
    if row.unit == "ratio":
        return f"{value:.3f}"
    return f"{value:,.0f}"


def _change(row: ComparedRow) -> str:
    """In percent, and as a multiple where it is many times as much."""
    if not row.change:
        return ""
    return f"x {row.change + 1:.3g}" if row.change >= MULTIPLE - 1 else f"{row.change:+.1%}"
