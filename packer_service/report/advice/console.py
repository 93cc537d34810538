"""The advice as text for a person."""

from __future__ import annotations

from itertools import groupby

from rich.console import Console
from rich.table import Table

from preshard.packer_service.report.advice.figures import Advice, SplitAdvice, StepSeconds
from preshard.packer_service.report.console import cleaned, fitted, saying, several

WIDE = 126
"""Columns of a console on which the tables have all their lines; a narrower one has none between columns, and breaks
words before it leaves a part of one out."""


def print_advice(advice: Advice, console: Console | None = None) -> None:
    """Prints the fastest splits as tables, the reasons, and what they rest on."""
    advice = cleaned(advice)
    to = console or Console(width=None if Console().is_terminal else 130, highlight=False)
    say = saying(to)
    say(
        f"{advice.gpus:,} x {advice.gpu}, a model of {advice.parameters / 1e9:.3g} billion parameters, "
        f"{several(advice.packs, 'pack')} of {advice.seq_len:,} tokens: {several(advice.considered, 'split')}, "
        f"{advice.fitting} of them fit into memory"
    )
    if advice.splits:
        for table in (_speeds(advice), _parts(advice)):
            to.print(fitted(table, to, WIDE))
    for number, split in enumerate(advice.splits, 1):
        say(f"{number}. {split.reason}")
        say(f"   {split.options or 'no option: a whole pack on the one device'}")
    for source, assumptions in groupby(advice.assumptions, lambda each: each.source):
        say(f"assumed ({source}):")
        for each in assumptions:
            say(f"  {each.name}={_value(each.value)}: {each.meaning}")
    for note in advice.notes:
        say(f"note: {note}")


def _speeds(advice: Advice) -> Table:
    headings = ("", "ulysses", "ring", "layout", "attention", "dp", "recompute", "tokens/s each", "over zigzag")
    table = Table(*headings, "over cp 1", "GB a rank")
    for number, split in enumerate(advice.splits, 1):
        table.add_row(
            str(number),
            *map(str, (split.ulysses_degree, split.ring_degree, _layout(split), split.kind, split.dp_size)),
            split.recompute,
            f"{split.tokens_per_second:,.0f}",
            _times(split.speedup_over_zigzag),
            _times(split.speedup_over_cp1),
            f"{split.memory.total:.1f}" + ("" if split.fits else " (too much)"),
        )
    return table


def _layout(split: SplitAdvice) -> str:
    return f"{split.layout} (derived)" if split.derived else split.layout


def _parts(advice: Advice) -> Table:
    table = Table("", "ms of a step", *(name.replace("_", " ") for name in _PARTS))
    for number, split in enumerate(advice.splits, 1):
        table.add_row(str(number), f"{split.seconds.total * 1e3:,.4g}", *(_share(split, name) for name in _PARTS))
    return table


_PARTS = tuple(name for name in StepSeconds.model_fields if name != "total")


def _share(split: SplitAdvice, name: str) -> str:
    return f"{getattr(split.seconds, name) / split.seconds.total:.1%}"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _value(value: float | int | str | None) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value)
