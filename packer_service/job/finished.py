"""Whether a folder holds what this job has finished before, with every file that its manifest names."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice

from preshard.packer_service.job.job_record import Record, refuse_difference
from preshard.packer_service.shards.lock import FolderInUseError, locked
from preshard.packer_service.shards.store import Folder
from preshard.schemas.errors import ConfigError, PreshardError
from preshard.schemas.manifest import MANIFEST, MODEL, RUN, SHARDS, WORK, ManifestHead, ShardEntry
from preshard.schemas.manifest_parts import decode_manifest_parts

INDEX_ENTRY_BYTES = 8
"""Bytes of an offset in a shard's index."""
LISTED_SHARDS = 50_000
"""Most shards of an object store that are listed to see whether a dataset is whole: a hundred requests."""
ASKED_SHARDS = 100
"""Shards that are asked for one by one where there are more."""


class DatasetDamagedError(PreshardError):
    """A dataset is whole by its manifest, but one of its files is missing or has another size."""


def finished_before(folder: Folder, record: Record) -> ManifestHead | None:
    """The manifest of a folder in which this job has finished, None when there is no manifest yet.

    Every file that the manifest names is there with its size; whether its bytes are right is for ``verify`` to say. In
    an object store with very many shards only some are asked for.

    Raises:
        ConfigError: the dataset belongs to another job.
        DatasetDamagedError: a file is missing, or has another size.
    """
    if not folder.is_file(MANIFEST):
        return None
    manifest, shards = decode_manifest_parts(folder.read(MANIFEST), MANIFEST)
    if not folder.is_file(RUN):
        raise ConfigError(
            f"--out {folder.location}: is a whole dataset without {RUN}, so its job is not known; give another folder"
        )
    refuse_difference(json.loads(folder.read(RUN))["job"], record, folder.location)
    _check_sizes(folder, manifest, shards)
    _clear(folder)
    return manifest


def _check_sizes(folder: Folder, manifest: ManifestHead, shards: Iterable[ShardEntry]) -> None:
    for table in manifest.tables:
        _check_size(folder, table.name, folder.size(table.name), table.bytes)
    for entry in manifest.carried:
        name = f"{MODEL}/{entry.name}"
        _check_size(folder, name, folder.size(name), entry.bytes)
    n_shards = -(-manifest.counts.packs // manifest.config["packs_per_shard"])
    many = n_shards > LISTED_SHARDS
    listed = None if many or folder.is_local else (folder / SHARDS).sizes()
    every = max(n_shards // ASKED_SHARDS, 1) if many and not folder.is_local else 1
    for shard in islice(shards, 0, None, every):
        files = {shard.name: shard.bytes, f"{shard.name}.idx": INDEX_ENTRY_BYTES * (shard.packs + 1)}
        for name, size in files.items():
            found = folder.size(f"{SHARDS}/{name}") if listed is None else listed.get(name)
            _check_size(folder, f"{SHARDS}/{name}", found, size)


def _check_size(folder: Folder, name: str, found: int | None, size: int) -> None:
    if found != size:
        how = "is missing" if found is None else f"has {found} bytes, not {size}"
        remedy = "put the file back, or remove the folder and run the same command again"
        raise DatasetDamagedError(f"{folder.location}: the dataset was whole, but {name} {how}; {remedy}")


def _clear(folder: Folder) -> None:
    """Removes the work folder that a run left when it was killed in its last moment."""
    if not (folder / WORK).exists():
        return
    try:
        with locked(folder / WORK):
            (folder / WORK).delete_all()
    except (FolderInUseError, FileNotFoundError):
        pass  # the run that has just written the manifest is about to do the same
    except OSError as error:
        if error.errno is None:  # not the operating system's: a store does not answer
            raise
        # a dataset that was made read-only is whole all the same
