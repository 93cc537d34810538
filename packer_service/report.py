"""``preshard report``: how full and how balanced a dataset is, what was lost and why. Reads tables, never shards."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table

from packer_service.balance_order import BalanceOrder
from packer_service.config import PackConfig, parse_config
from packer_service.figures import BalanceFigures, Figures, loss_figures, plan_figures, truncated_by_source
from packer_service.shards.store import Folder
from schemas.codec import decode_manifest, decode_table
from schemas.errors import ConfigError, TableInvalid
from schemas.manifest import MANIFEST, RUN, Manifest
from schemas.pack import Plan
from schemas.tables import BALANCE, TABLES


def open_dataset(location: str) -> tuple[Folder, Manifest]:
    """A dataset's folder and manifest.

    Raises:
        ConfigError: there is no such folder, or it is no dataset.
        ManifestInvalid: its manifest cannot be read.
    """
    folder = Folder(location)
    if not folder.exists():
        raise ConfigError(f"DATASET {location}: no such folder")
    if not folder.is_file(MANIFEST):
        raise ConfigError(f"DATASET {location}: has no {MANIFEST}: it is no dataset, or packing it has not ended")
    return folder, decode_manifest(folder.read(MANIFEST), MANIFEST)


def report_dataset(location: str, dp_sizes: Sequence[int] = ()) -> Figures:
    """Every figure of the report. The keys that other programs rely on are named in ``docs/format.md``.

    Straggler ratios are those of ``dp_sizes``, or else of the powers of two that divide the window.

    Raises:
        ConfigError: there is no such folder, or it is no dataset.
        PlanError: a data-parallel size does not divide the window.
        FormatError: the dataset is broken.
    """
    folder, manifest = open_dataset(location)
    packs, documents, rejects = (
        decode_table(folder.read(f"{name}.parquet"), TABLES[f"{name}.parquet"], f"{name}.parquet")
        for name in ("packs", "documents", "rejects")
    )
    config, counts = parse_config(manifest.config), manifest.counts
    run = json.loads(folder.read(RUN)) if folder.is_file(RUN) else {}
    written = _plan_of_tables(packs, documents, config.seq_len)
    return {
        "dataset_id": manifest.dataset_id,
        "source_documents": counts.source_documents,
        "rejected": counts.rejected,
        "shards": len(manifest.shards),
        "n_images": counts.images,
        **plan_figures(written, documents["n_images"].to_numpy(), config, dp_sizes),
        "documents": counts.documents,
        **loss_figures(rejects, truncated_by_source(documents, "truncated_tokens")),
        "plan_seconds": float(run.get("plan_seconds", 0.0)),
        "seconds": {name: value for name, value in run.items() if name.endswith("_seconds")},
        "attempts": len(run.get("attempts", [])),
        "measured_per_second": _rate(counts.source_documents, run.get("measure_task_seconds", 0.0)),
        "balanced_packs": counts.packs,
        **_balance(folder, packs, config),
    }


def _rate(documents: int, seconds: float) -> float:
    """Documents a second of one task; 0 when the time is not known."""
    return round(documents / seconds, 1) if seconds else 0.0


def _plan_of_tables(packs: pa.Table, documents: pa.Table, seq_len: int) -> Plan:
    """What was written, as the plan that would have given it."""
    columns = {name: documents[name].to_numpy() for name in ("start", "length", "aligned_length")}
    return Plan(
        seq_len=seq_len,
        document=np.arange(len(documents)),
        cost=packs["cost"].to_numpy(),
        pack_edges=np.searchsorted(documents["pack_id"].to_numpy(), np.arange(len(packs) + 1)),
        **columns,
    )


def _balance(folder: Folder, packs: pa.Table, config: PackConfig) -> Figures:
    """Balance figures, a block of packs in memory at a time."""
    tiles = dict(zip(packs["pack_id"].to_pylist(), packs["attention_tiles"].to_pylist(), strict=True))
    figures = BalanceFigures(seq_len=config.seq_len, tiles=tiles, key_weight=config.key_weight)
    try:
        file = pq.ParquetFile(io.BytesIO(folder.read("balance.parquet")))
        if not file.schema_arrow.equals(BALANCE):
            raise TableInvalid("balance.parquet", f"has the columns {file.schema_arrow.names}, not {BALANCE.names}")
        batches = (pa.Table.from_batches([batch]).cast(BALANCE) for batch in file.iter_batches())
        for block in BalanceOrder.of(config, len(packs)).by_block(batches):
            figures.add(block)
    except pa.ArrowException as error:
        raise TableInvalid("balance.parquet", f"cannot be read ({' '.join(str(error).split())[:200]})") from None
    return figures.as_json()


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
