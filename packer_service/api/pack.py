"""``preshard.pack``: the command, as a program calls it."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from preshard.packer_service.api.dataset import Dataset, Location
from preshard.packer_service.config import load_config
from preshard.packer_service.ingest.media.reach import AllowedMedia
from preshard.packer_service.job.pack import run
from preshard.packer_service.job.resolve import resolve
from preshard.packer_service.numerics import hear_of_compiling
from preshard.packer_service.report.console import lost_files, too_many_rejects
from preshard.packer_service.report.dataset import dataset_reject_reasons, dataset_rejects
from preshard.packer_service.runtime.local import choose_executor
from preshard.packer_service.runtime.progress import ConsoleProgress, NoProgress
from preshard.packer_service.shards.store import require_answer
from preshard.schemas.errors import DUPLICATES, LOST_ROWS, PreshardError, TooManyRejectsError
from preshard.schemas.manifest import ManifestHead

MAX_REJECTS = 0.05
"""Share of rows that may be rejected where nobody says another."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Packed:
    """Outcome of packing. ``seconds`` are those of each phase, none where the dataset was whole before."""

    path: str
    documents: int
    rejected: int
    packs: int
    shards: int
    seconds: Mapping[str, float]
    already_done: bool

    def open(self) -> Dataset:
        """The dataset."""
        return Dataset(self.path)


def pack(
    source: Location | Sequence[Location],
    output: Location,
    *,
    config: Location | None = None,
    media_root: str | Mapping[str, str] | None = None,
    allow_media: Sequence[str] = (),
    max_rejects: float = MAX_REJECTS,
    allow_lost_files: bool = False,
    executor: str = "auto",
    ray_address: str | None = None,
    num_cpus: int | None = None,
    wait_for_workers: float | None = None,
    skip_bad_nodes: bool = False,
    progress: bool = True,
    **configuration: Any,
) -> Packed:
    """Packs sources into a dataset, as ``preshard pack`` does, and continues where an earlier run stopped.

    Args:
        source: files, folders and patterns: paths or URIs.
        output: folder of the dataset, a path or URI.
        config: file of YAML.
        media_root: as the option of the command, like those that follow; a mapping gives folders by their sources.
        progress: whether to print on standard error what is done.
        configuration: keys and values over the file's; sections are mappings: ``video={"fps": 1}``.

    Raises:
        ConfigError: a key, a value or a location cannot be used.
        TooManyRejectsError: the dataset is whole, but lacks more than ``max_rejects`` of the rows, or rows of damaged
            files of which nobody knows how many they are.
        PreshardError: no document was packed, or the job cannot continue; finished work is kept.
    """
    sources = [os.fspath(source)] if isinstance(source, str | os.PathLike) else [os.fspath(each) for each in source]
    values = {
        key: os.fspath(value) if isinstance(value, os.PathLike) else value for key, value in configuration.items()
    }
    for each in sources:
        require_answer("SOURCE", each)
    loaded = load_config(None if config is None else Path(config), (), sources, values)
    roots = {None: media_root} if isinstance(media_root, str) else (media_root or {})
    media = AllowedMedia(roots=tuple(roots.items()), allow=tuple(allow_media))
    job = resolve(sources, loaded, media)
    with ExitStack() as stack:
        listener = ConsoleProgress() if progress else NoProgress()
        stack.callback(listener.close)
        if isinstance(listener, ConsoleProgress):
            stack.enter_context(hear_of_compiling(listener.begin_compiling, listener.end_compiling))
        where = choose_executor(
            executor, ray_address, num_cpus, listener, wait_minutes=wait_for_workers, skip_bad_nodes=skip_bad_nodes
        )
        tasks = stack.enter_context(where)
        outcome = run(job, os.fspath(output), tasks, listener)
    check_rejects(os.fspath(output), outcome.manifest, max_rejects, allow_lost_files=allow_lost_files)
    counts = outcome.manifest.counts
    return Packed(
        path=os.fspath(output),
        documents=counts.documents,
        rejected=counts.rejected,
        packs=counts.packs,
        shards=outcome.n_shards,
        seconds=outcome.seconds,
        already_done=outcome.already_done,
    )


def check_rejects(path: str, manifest: ManifestHead, max_rejects: float, *, allow_lost_files: bool = False) -> None:
    """
    Raises:
        PreshardError: no document was packed.
        TooManyRejectsError: more than this share of the rows was rejected, or an unknown number of rows was lost.
    """
    counts = manifest.counts
    require_documents(path, counts.documents, counts.source_documents)
    if counts.rejected and not allow_lost_files:
        lost = dataset_rejects(path).get(LOST_ROWS, 0)
        if lost:
            first = [reason for reason in dataset_reject_reasons(path) if reason.code == LOST_ROWS]
            raise TooManyRejectsError(f"{path}: the dataset is whole, but {lost_files(lost, first)}")
    rejected = counts.rejected - counts.duplicates
    if rejected > max_rejects * counts.source_documents:
        reasons = [reason for reason in dataset_reject_reasons(path) if reason.code not in DUPLICATES]
        why = too_many_rejects(reasons, rejected, counts.source_documents, max_rejects)
        raise TooManyRejectsError(f"{path}: the dataset is whole, but {why}")


def require_documents(what: str, documents: int, of: int) -> None:
    """
    Raises:
        PreshardError: no document was packed.
    """
    if not documents:
        reasons = {0: "no row was found", 1: "its only row was rejected"}
        raise PreshardError(f"{what}: holds no document: {reasons.get(of, f'all {of:,} rows were rejected')}")
