"""Recognises a packed dataset among the sources of a job, and reads its manifest but for the list of shards."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import IO, Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from preshard.packer_service.ingest.source.file import DATASET, DatasetIdentity, SourceFile
from preshard.schemas.dataset.annotations import ANNOTATIONS, annotations_faults
from preshard.schemas.dataset.manifest_parts import SealedHead, read_sealed_head
from preshard.schemas.errors import ConfigError, FormatError
from preshard.schemas.files.filesystem import join, locate
from preshard.schemas.manifest import MANIFEST, WORK, ManifestHead


def dataset_manifest(source: str) -> SealedHead | None:
    """The manifest of a source that is a dataset, None for any other source.

    Raises:
        ConfigError: the dataset has another version of the format, is damaged, or is not whole yet.
        OSError: it cannot be read.
    """
    opened = _opened(source)
    if opened is None:
        return None
    with opened:
        try:
            return read_sealed_head(opened, MANIFEST)
        except FormatError as error:
            opened.seek(0)
            if not _is_ours(opened.read()):
                return None
            raise ConfigError(f"SOURCE {source}: {error}") from None


def dataset_file(label: str, source: str, manifest: SealedHead, *, annotated: bool = False) -> SourceFile:
    """A dataset as one file of the job's sources; ``annotated`` if its annotations are a part of what is packed.

    Raises:
        ConfigError: the annotations are of another dataset, or damaged.
    """
    annotations = _annotations_sha256(label, source, manifest.head) if annotated else None
    return SourceFile(
        label=label,
        uri=source,
        kind=DATASET,
        size=0,  # what a dataset holds is known by its hashes
        mtime_ns=0,
        form=DATASET,
        dataset=DatasetIdentity(
            dataset_id=manifest.head.dataset_id, manifest_sha256=manifest.sha256, annotations_sha256=annotations
        ),
    )


def _annotations_sha256(label: str, source: str, manifest: ManifestHead) -> str | None:
    """The hash of a dataset's annotations; None if it has none."""
    filesystem, path = locate(join(source, ANNOTATIONS))
    if filesystem.get_file_info(path).type != fs.FileType.File:
        return None
    with filesystem.open_input_file(path) as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        opened.seek(0)
        try:
            faults = list(annotations_faults(pq.read_schema(opened), manifest))
        except pa.ArrowInvalid:
            faults = ["is damaged; remove it and annotate again"]
    if faults:
        raise ConfigError(f"SOURCE {label}: {ANNOTATIONS} {faults[0]}")
    return digest


@lru_cache(maxsize=16)
def manifest_of(file: SourceFile) -> ManifestHead:
    """The manifest of a dataset that was listed as a source.

    Raises:
        ConfigError: it has changed since then.
        OSError: it cannot be read.
    """
    manifest = dataset_manifest(file.uri)
    if manifest is None or file.dataset is None or manifest.sha256 != file.dataset.manifest_sha256:
        raise ConfigError(f"SOURCE {file.label}: changed while it was read; run the same command with another --out")
    return manifest.head


def _opened(source: str) -> IO[bytes] | None:
    """The file that would be the manifest.

    Raises:
        ConfigError: there is none, but what a job leaves until its dataset is whole.
    """
    try:
        filesystem, path = locate(join(source, MANIFEST))
        kind = filesystem.get_file_info(path).type
    except (OSError, ConfigError):  # whoever lists the source says what is wrong with it
        return None
    if kind == fs.FileType.File:
        opened: IO[bytes] = filesystem.open_input_file(path)
        return opened
    _, job = locate(join(source, WORK, "job.json"))
    if filesystem.get_file_info(job).type == fs.FileType.File:
        raise ConfigError(f"SOURCE {source}: is a dataset that is not whole yet; finish its job with the same command")
    return None


def _is_ours(content: bytes) -> bool:
    """Whether a file of this name, which other programs use as well, describes a dataset of ours."""
    try:
        found: Any = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and {"format_version", "dataset_id"} <= found.keys()
