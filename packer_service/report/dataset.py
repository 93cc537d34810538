"""``preshard report``: how full and how balanced a dataset is, what was lost and why. Reads tables, never shards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pydantic import ValidationError

from packer_service.plan.plan import Plan
from packer_service.report.balance import balances
from packer_service.report.figures import Balances, DatasetReport, Figures, Mixture, RejectReason, SourceShare
from packer_service.report.fill import plan_as_written, plan_fill
from packer_service.report.loads import read_loads
from packer_service.report.losses import losses
from packer_service.report.mismatch import warnings_of
from packer_service.report.reasons import reject_reasons
from packer_service.report.tables import open_balance
from packer_service.shards.reach import require_answer
from packer_service.shards.store import Folder
from schemas.balance import BalanceOrder
from schemas.codec import decode_manifest, decode_table
from schemas.config import PackConfig, stored_config
from schemas.errors import ConfigError
from schemas.manifest import MANIFEST, RUN, Manifest
from schemas.tables import TABLES

REJECTS_FILE = "rejects.parquet"


def open_dataset(location: str) -> tuple[Folder, Manifest]:
    """A dataset's folder and manifest.

    Raises:
        ConfigError: there is no such folder, or it is not a dataset.
        ManifestInvalid: its manifest cannot be read.
    """
    require_answer("DATASET", location)
    folder = Folder(location)
    if not folder.exists():
        raise ConfigError(f"DATASET {location}: no such folder")
    if not folder.is_file(MANIFEST):
        raise ConfigError(f"DATASET {location}: has no {MANIFEST}: it is not a dataset, or packing it has not finished")
    return folder, decode_manifest(folder.read(MANIFEST), MANIFEST)


def report_dataset(location: str, dp_sizes: Sequence[int] = ()) -> DatasetReport:
    """Every figure of the report, described in ``docs/format.md``.

    Straggler ratios are given for ``dp_sizes``, by default for the powers of two that divide the window.

    Raises:
        ConfigError: there is no such folder, or it is not a dataset.
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
    seconds = run_seconds(run)
    fill = plan_fill(
        _written(packs, documents, config.seq_len),
        images=documents["n_images"].to_numpy(),
        max_images=config.max_images,
        patches=documents["n_patches"].to_numpy(),
        max_patches=config.max_patches,
        window=config.order.window,
        dp_sizes=dp_sizes,
    )
    found: list[Figures] = [fill, losses(rejects, documents, "truncated_tokens"), _balances(folder, packs, config)]
    found.append(mixture_of(run, documents, config, counts.left_out))
    return DatasetReport(
        **{name: value for figures in found for name, value in figures if name != "documents"},
        dataset_id=manifest.dataset_id,
        source_documents=counts.source_documents,
        documents=counts.documents,
        rejected=counts.rejected,
        unused_columns=manifest.unused_columns,
        unread_files=manifest.unread_files,
        warnings=warnings_of(manifest, config),
        shards=len(manifest.shards),
        n_images=counts.images,
        plan_seconds=seconds.get("plan_seconds", 0.0),
        seconds=seconds,
        attempts=len(run.get("attempts", [])),
        measured_per_second=_rate(counts.source_documents, seconds.get("measure_task_seconds", 0.0)),
    )


def dataset_reject_reasons(location: str) -> list[RejectReason]:
    """The most frequent reasons of a dataset's rejects.

    Raises:
        ConfigError: there is no such folder, or it is not a dataset.
        FormatError: the table is broken.
    """
    folder, _ = open_dataset(location)
    return reject_reasons(decode_table(folder.read(REJECTS_FILE), TABLES[REJECTS_FILE], REJECTS_FILE))


def run_seconds(run: Any) -> dict[str, float]:
    """The times in ``run.json``."""
    entries = run.items() if isinstance(run, dict) else ()
    return {
        name: float(value) for name, value in entries if name.endswith("_seconds") and isinstance(value, int | float)
    }


def mixture_of(run: Any, documents: pa.Table, config: PackConfig, left_out: int) -> Mixture:
    """What the job wrote of its mixture; without that, what can be seen in the documents.

    Args:
        run: the content of ``run.json``, or anything else.
        documents: ``source`` and ``length`` of each.
        config: the dataset's configuration.
        left_out: documents that the mixture leaves out.
    """
    try:
        return Mixture.model_validate(run.get("mixture") if isinstance(run, dict) else None)
    except ValidationError:
        pass
    summed = documents.group_by("source", use_threads=False).aggregate([("length", "sum"), ("length", "count")])
    total, weights = pc.sum(documents["length"]).as_py(), dict(config.mixture)
    shares = {
        row["source"]: SourceShare(
            weight=weights.get(row["source"], 1.0),
            documents=row["length_count"],
            tokens=row["length_sum"],
            asked=None,
            share=row["length_sum"] / total,
            loss_share=None,
        )
        for row in summed.sort_by("source").to_pylist()
    }
    return Mixture(left_out=left_out, shares=shares)


def _rate(documents: int, seconds: float) -> float:
    """Documents per second of one task; 0 when the time is not known."""
    return round(documents / seconds, 1) if seconds else 0.0


def _written(packs: pa.Table, documents: pa.Table, seq_len: int) -> Plan:
    names = ("start", "length", "aligned_length")
    return plan_as_written(
        seq_len=seq_len,
        cost=packs["cost"].to_numpy(),
        pack_ids=documents["pack_id"].to_numpy(),
        **{name: documents[name].to_numpy() for name in names},
    )


def _balances(folder: Folder, packs: pa.Table, config: PackConfig) -> Balances:
    """Balance figures, with the loads of one layout in memory at a time."""
    order, every = BalanceOrder.of(config, len(packs)), range(len(packs))
    with open_balance(folder, order) as file:
        return balances(
            lambda group: read_loads(file, order, group, every), packs["attention_tiles"].to_numpy(), config
        )
