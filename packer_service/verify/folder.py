"""The rules of the folder: the manifest against itself, the tables and the files that are there; annotations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import BaseModel

from preshard.packer_service.shards.store import Folder
from preshard.packer_service.verify.scan import RowReader
from preshard.packer_service.verify.verdict import MOST_LISTED, Finding
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.annotations import ANNOTATIONS, PLACES, open_annotations
from preshard.schemas.dataset.table_file import TableFile
from preshard.schemas.errors import (
    AnnotationsInvalid,
    DocumentLost,
    FiguresInvalid,
    FileUnknown,
    ManifestContradiction,
    ManifestInvalid,
    ShardMissing,
    TableMissing,
)
from preshard.schemas.manifest import BESIDE, ENERGON, FIGURES, MANIFEST, MODEL, RUN, SHARDS, WORK, Manifest
from preshard.schemas.members import shard_name
from preshard.schemas.tables import TABLES


def check_manifest(manifest: Manifest) -> Iterator[Finding]:
    """Checks the manifest beyond the types of its fields."""
    tokenizer = manifest.tokenizer
    for field in ("bos_id", "eos_id", "pad_id", "image_id"):
        token = getattr(tokenizer, field)
        if token is not None and token >= tokenizer.vocab_size:
            yield ManifestInvalid, f"tokenizer.{field} is {token}, not below vocab_size {tokenizer.vocab_size}"
    for field in ("masks", "bidirectional"):
        model = manifest.model
        if model is not None and field in model.model_fields_set and getattr(model, field) is None:
            yield ManifestInvalid, f"model.{field} is null, which is said by leaving it out"
    for field in ("row_ids", "group_ids") if manifest.model else ():
        for token in getattr(manifest.model, field):
            if token >= tokenizer.vocab_size:
                yield ManifestInvalid, f"model.{field} has {token}, not below vocab_size {tokenizer.vocab_size}"


def check_shard_list(manifest: Manifest, config: PackConfig) -> Iterator[Finding]:
    """Shards are named in order, hold consecutive packs, and are full but for the last."""
    first, each = 0, config.packs_per_shard
    for number, shard in enumerate(manifest.shards):
        last = number == len(manifest.shards) - 1
        if shard.name != shard_name(number):
            yield ManifestContradiction, f"shards[{number}].name is {shard.name!r}, not {shard_name(number)!r}"
        if shard.first_pack != first:
            yield ManifestContradiction, f"shards[{number}].first_pack is {shard.first_pack}, not {first}"
        if not (1 <= shard.packs <= each if last else shard.packs == each):
            yield ManifestContradiction, f"shards[{number}].packs is {shard.packs}; packs_per_shard is {each}"
        first += shard.packs
    if first != manifest.counts.packs:
        yield ManifestContradiction, f"counts.packs is {manifest.counts.packs}; the shards hold {first}"


def check_files(manifest: Manifest, names: Sequence[str], links: Mapping[str, str]) -> Iterator[tuple[str, Finding]]:
    """Every file that the manifest names is there, and no other. Yields the file with what is wrong.

    Of shards that are missing the first are files of their own, and the others one of their folder, which are counted.

    Args:
        manifest: the manifest.
        names: the files that are there, by their paths in the dataset.
        links: those of them that lead out of the dataset, and where to.
    """
    carried = [f"{MODEL}/{entry.name}" for entry in manifest.carried]
    there, known = set(names), {MANIFEST, RUN, FIGURES, ANNOTATIONS, *TABLES, *carried, *BESIDE}
    for entry in manifest.tables:
        if entry.name not in there:
            yield entry.name, (TableMissing, "is not there")
    of_shards = [f"{SHARDS}/{shard.name}{ending}" for shard in manifest.shards for ending in ("", ".idx")]
    known |= set(of_shards)
    for number, name in enumerate(name for name in of_shards if name not in there):
        if number < MOST_LISTED:
            yield name, (ShardMissing, "is not there")
        else:
            yield SHARDS, (ShardMissing, f"{name.removeprefix(SHARDS + '/')} is not there")
    for name in names:
        if name not in known and not name.startswith((f"{WORK}/", f"{ENERGON}/")):
            yield name, (FileUnknown, "is not a file of the format; a job that was killed leaves .tmp- files behind")
    for name, to in links.items():
        yield name, (FileUnknown, f"is a link out of the dataset, to {to!r:.200}; put there what it leads to")


def check_counts(manifest: Manifest, derived: Mapping[str, int]) -> Iterator[Finding]:
    """The manifest's totals follow from the tables that can be read.

    Args:
        manifest: the manifest.
        derived: counts that the tables give.
    """
    counts = manifest.counts
    for name, value in derived.items():
        if getattr(counts, name) != value:
            yield ManifestContradiction, f"counts.{name} is {getattr(counts, name)}; the tables hold {value}"
    config = manifest.config
    n_phases, window = len(config["curriculum"]), config["order"]["window"]
    phases = manifest.phases
    if len(phases) != n_phases or any(packs % window for packs in phases) or sum(phases) > counts.packs:
        yield (
            ManifestContradiction,
            f"phases is {phases}; a curriculum of {n_phases} phases has as many, in whole groups of {window} packs, of "
            f"{counts.packs} packs",
        )
    if counts.documents + counts.rejected + counts.left_out != counts.source_documents:
        given = f"documents {counts.documents}, rejected {counts.rejected} and left_out {counts.left_out}"
        yield ManifestContradiction, f"counts.source_documents is {counts.source_documents}, not the sum of {given}"


def check_total(manifest: Manifest, packed: int, rejected: int) -> Iterator[Finding]:
    """Every document of the source is packed or rejected."""
    source = manifest.counts.source_documents - manifest.counts.left_out
    if packed + rejected < source:
        yield DocumentLost, f"of {source} source documents {packed} are packed and {rejected} rejected"
    elif packed + rejected > source:
        yield ManifestContradiction, f"{packed} documents are packed and {rejected} rejected, of {source} in the source"


def check_numbered(manifest: Manifest, named: int) -> Iterator[Finding]:
    """No more documents got a number behind their id than there are ids with one, and documents that were left out."""
    most = named + manifest.counts.left_out
    if manifest.counts.numbered > most:
        yield ManifestContradiction, f"counts.numbered is {manifest.counts.numbered}; {most} ids end in #2, #3 ..."


def check_dataset_id(manifest: Manifest, derived: str) -> Iterator[Finding]:
    """``dataset_id`` hashes configuration, tokenizer, model and plan."""
    if manifest.dataset_id != derived:
        yield ManifestContradiction, f"dataset_id is {manifest.dataset_id!r}, not {derived!r}"


def compare_figures(stored: BaseModel, derived: BaseModel) -> Iterator[Finding]:
    """Stored figures are those that the tables give; of each field the first that differs is named."""
    for field in type(derived).model_fields:
        there, wanted = (_flat(getattr(figures, field)) for figures in (stored, derived))
        for key in dict.fromkeys((*wanted, *there)):
            found, given = there.get(key), wanted.get(key)
            if found != given:
                yield FiguresInvalid, f"{field}{key} is {found!r:.80}; the tables give {given!r:.80}"
                break


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    """Single values by where they lie in a figure."""
    if isinstance(value, BaseModel):
        value = dict(value)
    elif isinstance(value, list):
        value = dict(enumerate(value))
    if not isinstance(value, dict):
        return {path: value}
    return {place: single for key, part in value.items() for place, single in _flat(part, f"{path}.{key}").items()}


def check_annotations(folder: Folder, manifest: Manifest, n_documents: int) -> Iterator[Finding]:
    """Faults of a dataset's annotations.

    Args:
        folder: the dataset, which has some.
        manifest: its manifest.
        n_documents: rows of ``documents.parquet``, which can be read.
    """
    try:
        with folder.open(ANNOTATIONS) as opened:
            found = list(_check_rows(folder, open_annotations(opened, manifest), n_documents))
    except AnnotationsInvalid as error:
        found = [error.detail]
    except (pa.ArrowException, OSError, ValueError) as error:
        found = [f"is damaged ({' '.join(str(error).split())[:200]}); remove it and annotate again"]
    for detail in found:
        yield AnnotationsInvalid, detail


def _check_rows(folder: Folder, file: TableFile, n_documents: int) -> Iterator[str]:
    """The rows are those of the documents, in their order, and numbers are finite."""
    if file.n_rows != n_documents:
        yield f"has {file.n_rows} rows; documents.parquet has {n_documents}"
        return
    with closing(RowReader(folder, "documents.parquet")) as documents:
        first = 0
        for batch in file.parts(checked=False):
            rows = documents.rows(first, first + len(batch)).select(PLACES.names)
            for name in PLACES.names:
                same = pc.fill_null(pc.equal(rows[name], pa.chunked_array([batch[name]])), fill_value=False)
                others = np.flatnonzero(~same.to_numpy())
                if len(others):
                    row = int(others[0])
                    there = f"documents.parquet has {rows[name][row].as_py()!r:.80}"
                    yield f"row {first + row} has the {name} {batch[name][row].as_py()!r:.80}, where {there}"
                    return
            for name, column in zip(batch.schema.names, batch.columns, strict=True):
                if pa.types.is_floating(column.type) and pc.any(pc.invert(pc.is_finite(column))).as_py():
                    yield f"{name} holds NaN or an infinite number; legal are finite numbers and null"
                    return
            first += len(batch)
