"""Recognises a packed dataset among the sources of a job, and reads its manifest but for the list of shards."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import Any

from pyarrow import fs

from preshard.packer_service.ingest.source.file import DATASET, DatasetIdentity, SourceFile
from preshard.schemas.dataset.annotations import ANNOTATIONS, open_annotations
from preshard.schemas.dataset.read_manifest import SealedHead, read_sealed_head
from preshard.schemas.errors import AnnotationsInvalid, ConfigError, FormatError
from preshard.schemas.files.filesystem import FileRefusedError, join, locate, open_regular, require_size
from preshard.schemas.manifest import LARGEST_HEAD, LARGEST_MANIFEST, MANIFEST, WORK, ManifestHead


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
            require_size(opened.size(), MANIFEST, LARGEST_MANIFEST)
            return read_sealed_head(opened, MANIFEST)
        except (FormatError, FileRefusedError) as error:
            opened.seek(0)
            if isinstance(error, FormatError) and not _is_ours(opened.read(LARGEST_HEAD)):
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
    with open_regular(filesystem, path, ANNOTATIONS) as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        opened.seek(0)
        try:
            open_annotations(opened, manifest)
        except AnnotationsInvalid as error:
            raise ConfigError(f"SOURCE {label}: {ANNOTATIONS} {error.detail}") from None
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


def _opened(source: str) -> Any:
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
        return filesystem.open_input_file(path)
    _, job = locate(join(source, WORK, "job.json"))
    if filesystem.get_file_info(job).type == fs.FileType.File:
        raise ConfigError(f"SOURCE {source}: this dataset is unfinished; run the command that packs it once more")
    return None


def _is_ours(content: bytes) -> bool:
    """Whether a file of this name, which other programs use as well, describes a dataset of ours."""
    try:
        found: Any = json.loads(content)
    except (ValueError, RecursionError):
        return False
    return isinstance(found, dict) and {"format_version", "dataset_id"} <= found.keys()
