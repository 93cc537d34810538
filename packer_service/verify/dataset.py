"""``preshard verify``: every rule of the format, derived again from the bytes of a dataset."""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from typing import Any

from preshard.packer_service.report.stored import compute_figures, read_figures
from preshard.packer_service.runtime.progress import Progress
from preshard.packer_service.shards.store import Folder, require_answer
from preshard.packer_service.verify.carried import CarriedCheck
from preshard.packer_service.verify.folder import (
    check_annotations,
    check_files,
    check_manifest,
    check_shard_list,
    compare_figures,
)
from preshard.packer_service.verify.independent.marks import Marks
from preshard.packer_service.verify.scan import MEASURES_FILE, DocumentRows, MeasuresReader, RowReader
from preshard.packer_service.verify.shard import ShardTask, ShardVerdict, check_shard
from preshard.packer_service.verify.tables import TableCheck, TablesFound
from preshard.packer_service.verify.verdict import Fault, Faults, Verdict
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.annotations import ANNOTATIONS
from preshard.schemas.dataset.manifest_parts import stored_config
from preshard.schemas.dataset.measures import MeasureOrder
from preshard.schemas.dataset.read_manifest import decode_manifest
from preshard.schemas.errors import (
    FormatError,
    ManifestInvalid,
    ManifestMissing,
    MeasuresInvalid,
    PreshardError,
)
from preshard.schemas.files.filesystem import FileRefusedError
from preshard.schemas.files.printed import several, without_secrets
from preshard.schemas.manifest import FIGURES, LARGEST_CARRIED, LARGEST_MANIFEST, MANIFEST, SHARDS, Manifest, ShardEntry

MOST_PACKS = 8
"""Packs of a dataset that are checked independently unless all are asked for."""


def verify_dataset(
    location: str,
    *,
    thorough: bool = False,
    processes: int | None = None,
    progress: Progress,
) -> Verdict:
    """Checks every rule of ``docs/format.md`` and names each that is broken, with the file, the sample and the value.

    Never stops at the first fault. A shard is read once, by one process, with one sample in memory at a time, and
    tables are read in parts. Rules that rest on a broken one are skipped: a manifest or configuration that cannot be
    read is the only fault named. The figures of most masks are derived by the functions that packing uses, those of a
    sample of packs by code that shares nothing with the writer.

    Args:
        location: path or URI of the dataset.
        thorough: derives the figures of every pack independently of the writer's functions, not of a sample.
        processes: processes that read shards at once, the machine's CPUs by default; with 1 this one reads them.
        progress: told how many shards are done.

    Raises:
        ConfigError: there is no such folder.
        OSError: a file is there and cannot be read.
    """
    require_answer("DATASET", location)
    folder, faults, checked = Folder(location), Faults(), Counter[str]()
    folder.require("DATASET")
    try:
        manifest = _read_manifest(folder)
        config = stored_config(manifest)
    except FormatError as error:
        faults.add(Fault.of(type(error), MANIFEST, error.detail))
    else:
        dataset = _Dataset(folder=folder, manifest=manifest, config=config, faults=faults, checked=checked)
        dataset.check_tables(progress)
        chosen = choose_packs(manifest.counts.packs, thorough=thorough)
        dataset.check_shards(chosen, processes or os.cpu_count() or 1, progress)
        dataset.check_figures()
    return Verdict(
        dataset=without_secrets(location), checked=dict(checked), broken=faults.listed, unlisted=faults.unlisted()
    )


def choose_packs(n_packs: int, *, thorough: bool) -> Container[int]:
    """All packs, or at most :data:`MOST_PACKS` spread evenly, the first and the last among them."""
    if thorough or n_packs <= MOST_PACKS:
        return range(n_packs)
    return frozenset(number * (n_packs - 1) // (MOST_PACKS - 1) for number in range(MOST_PACKS))


def _read_manifest(folder: Folder) -> Manifest:
    if not folder.is_file(MANIFEST):
        raise ManifestMissing(MANIFEST, "is missing: the folder is not a dataset, or packing it has not finished")
    try:
        return decode_manifest(folder.read(MANIFEST, LARGEST_MANIFEST), MANIFEST)
    except FileRefusedError as error:
        raise ManifestInvalid(MANIFEST, str(error).removeprefix(f"{MANIFEST}: ")) from None


@dataclass(kw_only=True)
class _Dataset:
    """A dataset with a legal manifest and configuration, and what was found in it so far."""

    folder: Folder
    manifest: Manifest
    config: PackConfig
    faults: Faults
    checked: Counter[str]
    found: TablesFound = field(default_factory=TablesFound)
    marks: Marks | None = None
    shards: list[ShardEntry] = field(default_factory=list)

    def check_tables(self, progress: Progress) -> None:
        """The manifest, the files that are there, and all tables but the measures, which are read with the shards."""
        manifest, config, faults = self.manifest, self.config, self.faults
        faults.extend(check_manifest(manifest), MANIFEST)
        faults.extend(check_shard_list(manifest, config), MANIFEST)
        names = self.folder.names()
        there = set(names)
        self.shards = [entry for entry in manifest.shards if f"{SHARDS}/{entry.name}" in there]
        for file, finding in check_files(manifest, names, self.folder.links_outside()):
            faults.extend([finding], file)
        carried = CarriedCheck(manifest, config, self._read_small)
        for file, finding in carried.run():
            faults.extend([finding], file)
        self.marks = carried.marks
        progress.note(f"reading the tables of {several(manifest.counts.packs, 'pack')}")
        self.found = TableCheck(self.folder, manifest, config, faults).run()
        if "documents.parquet" in self.found.rows and self.folder.is_file(ANNOTATIONS):
            found = check_annotations(self.folder, manifest, self.found.rows["documents.parquet"])
            faults.extend(found, ANNOTATIONS)
        self.checked.update(shards=0, packs=0, independent=0, images=0)
        counted = {name: rows for name, rows in self.found.rows.items() if name != "packs.parquet"}
        self.checked.update({name.removesuffix(".parquet"): rows for name, rows in counted.items()})

    def _read_small(self, name: str) -> bytes | None:
        """A carried file, or one byte more than any may have."""
        if not self.folder.is_file(name):
            return None
        with self.folder.open(name) as file:
            content: bytes = file.read(LARGEST_CARRIED + 1)
        return content

    def check_figures(self) -> None:
        """``figures.json``: the one that the manifest names and, of a sound dataset, what follows from its tables."""
        faults = self.faults
        try:
            stored = read_figures(self.folder, self.manifest)
            if not faults.listed:
                derived = compute_figures(self.folder, self.config, self.manifest.counts.packs)
                faults.extend(compare_figures(stored, derived), FIGURES)
        except FormatError as error:
            faults.extend([(type(error), error.detail)], error.where)

    def check_shards(self, independent: Container[int], processes: int, progress: Progress) -> None:
        """Every shard and its rows of the tables. Figures of ``independent`` packs share no code with the writer."""
        n_packs, total = self.manifest.counts.packs, len(self.shards)
        order = MeasureOrder.of(self.config, n_packs)
        reader = MeasuresReader(self.folder, self.faults, self.manifest.table(MEASURES_FILE), order)
        tasks = self._tasks(reader, len(order.groups), independent)
        progress.doing(f"verified shards: 0 of {total}")
        for done, verdict in enumerate(_run(tasks, min(processes, total)), start=1):
            self.faults.merge(verdict.faults)
            self.checked.update(verdict.checked)
            progress.step("verified shards", done, total)
        self.faults.extend(self.found.pieces.findings, "documents.parquet")
        if reader.count_surplus():
            past = f"has rows past the {len(order.groups)} of each of {n_packs} packs"
            self.faults.extend([(MeasuresInvalid, past)], MEASURES_FILE)
        reader.close()

    def _marked(self, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return list(self.found.pieces.mark(rows, knows_lost="rejects.parquet" in self.found.rows))

    def _tasks(self, reader: MeasuresReader, per_pack: int, independent: Container[int]) -> Iterator[ShardTask]:
        """One task per shard that is there, made when a process is free for it: few rows are in memory twice."""
        total = self.manifest.counts.packs
        with ExitStack() as stack:

            def opened(name: str) -> RowReader:
                return stack.enter_context(closing(RowReader(self.folder, name)))

            packs = opened("packs.parquet") if "packs.parquet" in self.found.rows else None
            spans = self.found.spans
            documents = None if spans is None else DocumentRows(opened("documents.parquet"), spans)
            for entry in self.shards:
                # What a damaged manifest says may be more than any table holds, and more than Arrow can count.
                first, n_packs = (min(number, total) for number in (entry.first_pack, entry.packs))
                yield ShardTask(
                    location=self.folder.location,
                    entry=entry,
                    config=self.config,
                    tokenizer=self.manifest.tokenizer,
                    model=self.manifest.model,
                    pack_rows=None if packs is None else packs.rows(first, first + n_packs).to_pylist(),
                    document_rows=None
                    if documents is None
                    else self._marked(documents.of_packs(first, first + n_packs)),
                    measure_rows=reader.of_packs(first, min(first + n_packs, total)),
                    measures_per_pack=per_pack,
                    independent=independent,
                    marks=self.marks,
                )


def _run(tasks: Iterable[ShardTask], processes: int) -> Iterator[ShardVerdict]:
    """Verdicts in the order of the tasks, with at most two tasks per process under way."""
    if processes <= 1:
        yield from map(check_shard, tasks)
        return
    # A forked copy of a process with threads (Arrow's, Numba's) may hang; the fork server has none.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["preshard.packer_service.verify.shard"])
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
            "the system killed a verifying process, probably for lack of memory; run verify with --num-cpus 1"
        ) from None
