"""Datasets as the list shows them."""

from __future__ import annotations

from typing import Any

from preshard.packer_service.http.dataset.catalog import Found
from preshard.packer_service.http.dataset.reader import Dataset
from preshard.packer_service.http.dataset.unfinished import Unfinished
from preshard.packer_service.http.models.datasets import DatasetEntry


def entry_of(found: Found) -> DatasetEntry:
    """A dataset, whatever its state, as the list shows it."""
    if isinstance(found, Unfinished):
        return _fill_in(
            found.name,
            state="unfinished",
            reason=found.reason,
            shards_done=found.shards_done,
            shards_total=found.shards_total,
            bytes=found.bytes,
        )
    if not isinstance(found, Dataset):
        return _fill_in(found.name, state="damaged", reason=found.reason)
    counts, manifest = found.manifest.counts, found.manifest
    return _fill_in(
        found.name,
        state="whole" if found.broken is None else "damaged",
        reason=found.broken,
        dataset_id=manifest.dataset_id,
        counts=counts,
        seq_len=found.config.seq_len,
        fill=counts.tokens / (counts.packs * found.config.seq_len) if counts.packs else 0.0,
        shards_done=len(found.shards),
        shards_total=len(found.shards),
        bytes=found.shard_bytes,
        packed=found.run[0],
    )


def _fill_in(name: str, **known: Any) -> DatasetEntry:
    unknown = dict.fromkeys(("reason", "dataset_id", "counts", "seq_len", "fill", "shards_total", "packed"))
    return DatasetEntry(**{"name": name, "shards_done": 0, "bytes": 0, **unknown, **known})
