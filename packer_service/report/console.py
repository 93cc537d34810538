"""The figures of ``report`` and ``plan`` as tables for a person."""

from __future__ import annotations

from functools import partial

from rich.console import Console
from rich.table import Table

from packer_service.report.figures import Figures


def print_report(figures: Figures, console: Console | None = None) -> None:
    """The figures as tables for a person."""
    to = console or Console(width=None if Console().is_terminal else 110, highlight=False)
    say = partial(to.print, soft_wrap=True, markup=False)  # a source may be named like markup
    say(
        f"{figures['documents']:,} documents in {figures['packs']:,} packs of "
        f"{figures['seq_len']:,} tokens: {figures['tokens']:,} tokens, {figures['padding_tokens']:,} padding, "
        f"fill {figures['fill']:.2%}"
    )
    causes = ", ".join(f"{cause} {tokens:,}" for cause, tokens in figures["padding"].items())
    say(f"padding by cause: {causes}")
    rejects = ", ".join(f"{code} {number}" for code, number in figures["rejects"].items())
    say(f"rejected: {rejects or 'none'}")
    for source, codes in figures["rejects_by_source"].items():
        say(f"  {source}: " + ", ".join(f"{code} {number}" for code, number in codes.items()))
    truncated = ", ".join(f"{source} {tokens:,}" for source, tokens in figures["truncated_tokens"].items())
    say(f"truncated tokens: {truncated or 'none'}")
    stragglers = ", ".join(f"{size}: {ratio:.4f}" for size, ratio in figures["straggler_ratio"].items())
    say(f"straggler ratio by data-parallel size: {stragglers}")
    if "seconds" in figures:
        say(_cost(figures))
    say(f"balance, means over {figures['balanced_packs']} packs; critical paths as multiples of the tile floor")
    to.print(_layout_table(figures))
    for degree, counts in figures["preferred"].items():
        if int(degree) > 1:
            of = ", ".join(f"{scheme} {number}" for scheme, number in counts.items())
            say(f"packs for which the cost model prefers, at ring degree {degree}: {of}")
    to.print(_image_table(figures))


def _cost(figures: Figures) -> str:
    """What the dataset took: of measuring and writing the time of all tasks of all runs, of planning the last run's."""
    seconds = {name.removesuffix("_seconds"): f"{value:,.1f} s" for name, value in figures["seconds"].items()}
    return (
        f"cost: measuring {seconds.get('measure_task', 'unknown')} of tasks ({figures['measured_per_second']:,.0f} "
        f"documents a second of one), planning {seconds.get('plan', 'unknown')}, writing "
        f"{seconds.get('write_task', 'unknown')} of tasks; runs: {figures['attempts']}"
    )


def _layout_table(figures: Figures) -> Table:
    table = Table("layout", "ring", "gather path", "ring path", "KV traffic", "imbalance", "tiles of each rank")
    for scheme, degrees in figures["balance"].items():
        for degree, row in degrees.items():
            cells = [f"{row[name]:.3f}" for name in ("gather", "ring", "traffic", "imbalance")]
            table.add_row(scheme, degree, *cells, " ".join(f"{load:,.0f}" for load in row["rank_tiles"]))
    return table


def _image_table(figures: Figures) -> Table:
    table = Table("image boundaries", "imbalance", "images of each rank")
    for size, row in figures["images"].items():
        table.add_row(f"cp {size}", f"{row['imbalance']:.3f}", " ".join(f"{load:g}" for load in row["rank_images"]))
    return table
