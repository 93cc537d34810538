"""``preshard report``: how full and how balanced a dataset is, what was lost and why. Reads tables, never shards."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from packer_service.layout.cost import key_weight
from packer_service.plan.plan import Plan
from packer_service.report.figures import BalanceFigures, Figures, loss_figures, plan_figures, truncated_by_source
from packer_service.shards.store import Folder
from schemas.balance import BalanceOrder
from schemas.codec import decode_manifest, decode_table
from schemas.config import PackConfig, stored_config
from schemas.errors import ConfigError, TableInvalid
from schemas.manifest import MANIFEST, RUN, Manifest
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
    config, counts = stored_config(manifest), manifest.counts
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
    figures = BalanceFigures(seq_len=config.seq_len, tiles=tiles, key_weight=key_weight(config.cost))
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
