"""``preshard verify``: every rule of the format, derived again from the bytes of a dataset."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np
import pyarrow as pa

from packer_service.runtime.progress import Progress
from packer_service.shards.store import Folder
from packer_service.verify.folder import (
    check_counts,
    check_dataset_id,
    check_files,
    check_manifest,
    check_shard_list,
)
from packer_service.verify.shard import ShardTask, ShardVerdict, check_shard
from packer_service.verify.tables import BALANCE_FILE, BalanceReader, check_documents, read_tables
from packer_service.verify.verdict import Fault, Faults, Verdict
from schemas.balance import BalanceOrder
from schemas.codec import decode_manifest
from schemas.config import PackConfig, stored_config
from schemas.errors import BalanceInvalid, ConfigError, DocumentRowInvalid, FormatError, ManifestMissing, PreshardError
from schemas.manifest import MANIFEST, Manifest, TableEntry


def verify_dataset(location: str, *, processes: int | None = None, progress: Progress) -> Verdict:
    """Checks every rule of ``docs/format.md`` and names each that is broken, with the file, the sample and the value.

    Never stops at the first fault. A shard is read once, by one process, one sample in memory at a time. Rules that
    rest on a broken one are not asked: a manifest or configuration that cannot be read is the only fault named.

    Args:
        location: path or URI of the dataset.
        processes: processes that read shards at once, the machine's CPUs by default; with 1 this one reads them.
        progress: told how many shards are done.

    Raises:
        ConfigError: there is no such folder.
        OSError: a file is there and cannot be read.
    """
    folder, faults, checked = Folder(location), Faults(), Counter[str]()
    if not folder.exists():
        raise ConfigError(f"DATASET {location}: no such folder")
    try:
        manifest = _read_manifest(folder)
        config = stored_config(manifest)
    except FormatError as error:
        faults.add(Fault.of(type(error), MANIFEST, error.detail))
    else:
        _check_all(folder, manifest, config, faults, checked, processes or os.cpu_count() or 1, progress)
    return Verdict(dataset=location, checked=dict(checked), broken=faults.listed, unlisted=faults.unlisted())


def _read_manifest(folder: Folder) -> Manifest:
    if not folder.is_file(MANIFEST):
        raise ManifestMissing(MANIFEST, "is not there: the folder is no dataset, or packing it has not ended")
    return decode_manifest(folder.read(MANIFEST), MANIFEST)


def _check_all(
    folder: Folder,
    manifest: Manifest,
    config: PackConfig,
    faults: Faults,
    checked: Counter[str],
    processes: int,
    progress: Progress,
) -> None:
    faults.extend(check_manifest(manifest), MANIFEST)
    faults.extend(check_shard_list(manifest, config), MANIFEST)
    for file, finding in check_files(manifest, folder.names()):
        faults.extend([finding], file)
    progress.note(f"reading the tables of {manifest.counts.packs} packs")
    entries = {entry.name: entry for entry in manifest.tables}
    tables = read_tables(folder, entries, faults)
    faults.extend(check_counts(manifest, tables), MANIFEST)
    documents, rejects = tables.get("documents.parquet"), tables.get("rejects.parquet")
    if documents is not None:
        faults.extend(_check_order(documents, manifest), "documents.parquet")
    if documents is not None and rejects is not None:
        faults.extend(check_documents(documents, rejects, config), "documents.parquet")
        faults.extend(check_dataset_id(manifest, config, documents, rejects), MANIFEST)
    checked.update(shards=0, packs=0, images=0)
    checked.update({name.removesuffix(".parquet"): len(tables[name]) for name in tables if name != "packs.parquet"})
    _check_shards(folder, manifest, config, tables, entries.get(BALANCE_FILE), faults, checked, processes, progress)


def _check_order(documents: pa.Table, manifest: Manifest) -> Iterator[tuple[type[FormatError], str]]:
    packs, starts = documents["pack_id"].to_numpy(), documents["start"].to_numpy()
    ordered = np.lexsort((starts, packs))
    moved = np.flatnonzero(ordered != np.arange(len(ordered)))
    if len(moved):
        yield DocumentRowInvalid, f"row {moved[0]} is out of order; rows are sorted by pack_id and start"
    outside = np.flatnonzero((packs < 0) | (packs >= manifest.counts.packs))
    if len(outside):
        yield DocumentRowInvalid, f"row {outside[0]} has pack_id {packs[outside[0]]} of {manifest.counts.packs} packs"


def _check_shards(
    folder: Folder,
    manifest: Manifest,
    config: PackConfig,
    tables: dict[str, pa.Table],
    balance: TableEntry | None,
    faults: Faults,
    checked: Counter[str],
    processes: int,
    progress: Progress,
) -> None:
    total = len(manifest.shards)
    order = BalanceOrder.of(config, manifest.counts.packs)
    reader = BalanceReader(folder, faults, balance, order)
    tasks = _tasks(folder, manifest, config, tables, reader, order.rows_per_pack)
    for done, verdict in enumerate(_run(tasks, min(processes, total)), start=1):
        faults.merge(verdict.faults)
        checked.update(verdict.checked)
        progress.step("verified shards", done, total)
    rest = reader.take(manifest.counts.packs * order.rows_per_pack, 1)
    if rest is not None and len(rest):
        past = f"has rows past the {order.rows_per_pack} of each of {manifest.counts.packs} packs"
        faults.extend([(BalanceInvalid, past)], BALANCE_FILE)
    reader.close()


def _tasks(
    folder: Folder,
    manifest: Manifest,
    config: PackConfig,
    tables: dict[str, pa.Table],
    reader: BalanceReader,
    per_pack: int,
) -> Iterator[ShardTask]:
    """A task a shard, made when a process is free for it: only the rows of shards under way are in memory twice."""
    packs = tables.get("packs.parquet")
    documents = _DocumentRows(tables.get("documents.parquet"))
    for entry in manifest.shards:
        # What a damaged manifest says may be more than any table holds, and more than Arrow can count.
        first, n_packs = (min(number, manifest.counts.packs) for number in (entry.first_pack, entry.packs))
        yield ShardTask(
            location=folder.location,
            entry=entry,
            config=config,
            tokenizer=manifest.tokenizer,
            pack_rows=None if packs is None else packs[min(first, len(packs)) :][:n_packs].to_pylist(),
            document_rows=documents.of_packs(first, first + n_packs),
            balance_rows=reader.take(first * per_pack, n_packs * per_pack),
            balance_per_pack=per_pack,
        )


class _DocumentRows:
    """Rows of ``documents.parquet`` by pack, also where they are out of order."""

    def __init__(self, documents: pa.Table | None) -> None:
        self.documents = documents
        packs = np.zeros(0, np.int64) if documents is None else documents["pack_id"].to_numpy()
        self.order = np.argsort(packs, kind="stable")
        self.packs = packs[self.order]

    def of_packs(self, first: int, end: int) -> list[dict[str, Any]] | None:
        if self.documents is None:
            return None
        start, stop = np.searchsorted(self.packs, [first, end])
        rows: list[dict[str, Any]] = self.documents.take(pa.array(self.order[start:stop])).to_pylist()
        return rows


def _run(tasks: Iterable[ShardTask], processes: int) -> Iterator[ShardVerdict]:
    """Verdicts in the order of the tasks, at most two tasks a process under way."""
    if processes <= 1:
        yield from map(check_shard, tasks)
        return
    # A forked copy of a process with threads (Arrow's, Numba's) may hang; the fork server has none.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["packer_service.verify.shard"])
    running: deque[Future[ShardVerdict]] = deque()
    try:
        with ProcessPoolExecutor(processes, mp_context=context) as pool:
            for task in tasks:
                running.append(pool.submit(check_shard, task))
                if len(running) >= 2 * processes:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
    except BrokenProcessPool:
        raise PreshardError(
            "a verifying process was killed, most likely for memory; verify with --num-cpus 1"
        ) from None
