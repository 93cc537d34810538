"""Keys of a dataset's configuration that may change when it is packed again, and the model that it is packed for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from preshard.packer_service.ingest.model import PackedFor, packed_for
from preshard.packer_service.ingest.packed.dataset import open_dataset
from preshard.packer_service.ingest.packed.manifest import manifest_of
from preshard.packer_service.ingest.source.file import DATASET, SourceFile
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.changes import NAMES_FILES, REMEDY, leaves, refuse_changes
from preshard.schemas.dataset.manifest_parts import stored_config
from preshard.schemas.errors import ConfigError
from preshard.schemas.kept_columns import KeptColumns
from preshard.schemas.manifest import ManifestHead


def packed_target(config: PackConfig, files: Sequence[SourceFile]) -> PackedFor:
    """Tokenizer and model of a job: those of the datasets among its sources, or those that the configuration names.

    The files of a tokenizer and a model are needed only for rows, or where the configuration names other ones than the
    datasets did.

    Raises:
        ConfigError: a key of the configuration would ask for a dataset's source again, or a file is not what it should
            be.
    """
    stored_files = [file for file in files if file.kind == DATASET]
    for file in stored_files:
        stored = stored_config(manifest_of(file))
        _refuse_other_columns(config.keep_columns, file, stored)
        refuse_changes(config, file.label, stored)
    first = manifest_of(files[0]) if files and len(stored_files) == len(files) else None
    if first is not None and all(getattr(config, name) == first.config[name] for name in NAMES_FILES):
        target = PackedFor(tokenizer=first.tokenizer, model=first.model)
    else:
        target = packed_for(config)
    for file in stored_files:
        _refuse_other_files(target, file.label, manifest_of(file))
    return target


def _refuse_other_columns(asked: KeptColumns, file: SourceFile, stored: PackConfig) -> None:
    """Documents may keep fewer columns than they have or were joined to them, and none that they do not have."""
    has, label = dict(stored.keep_columns), file.label
    if not set(dict(asked)) <= set(has):
        has |= open_dataset(file).joined_columns
    for name, kind in asked:
        if has.get(name) != kind:
            known = ", ".join(f"{key} ({value})" for key, value in has.items()) or "none"
            raise ConfigError(f"keep_columns: {label} has no column {name} of type {kind}; it keeps {known}")


def _refuse_other_files(target: PackedFor, label: str, manifest: ManifestHead) -> None:
    """Compares what the files of a model and a tokenizer hold."""
    now, before = _facts(target.model), _facts(manifest.model)
    if now != before:
        raise ConfigError(f"model: {_difference(now, before, label, 'packed for a model')}; {REMEDY}")
    own, stored = (_facts(entry) for entry in (target.tokenizer, manifest.tokenizer))
    if own != stored:
        key = "chat_template" if _without_template(own) == _without_template(stored) else "tokenizer"
        raise ConfigError(f"{key}: {_difference(own, stored, label, 'packed with a tokenizer')}; {REMEDY}")


def _facts(entry: BaseModel | None) -> dict[str, Any]:
    """Values that decide tokens and images, without the name of a file."""
    return {} if entry is None else entry.model_dump(mode="json", exclude={"name"})


def _without_template(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if name != "chat_template_sha256"}


def _difference(now: dict[str, Any], before: dict[str, Any], label: str, what: str) -> str:
    if not now or not before:
        there = "without a model" if not before else what
        return f"{label} was packed {there.removeprefix('packed ')}, and text is not tokenised again"
    [key, value, old] = next(
        [path.removeprefix("."), own, theirs]
        for path, own, theirs in leaves("", _padded(now, before), _padded(before, now))
        if own != theirs
    )
    return (
        f"{key} is {value!r:.20} now, but {label} was {what} where it is {old!r:.20}, and text is not tokenised again"
    )


def _padded(one: Any, other: Any) -> Any:
    """The first value with the keys of the second, None where it has none."""
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return one
    return {key: _padded(one.get(key), other.get(key)) for key in {**one, **other}}


OF_SIZE = ("too_long", "too_many_images", "too_many_patches")
"""Codes of documents that were above a budget."""


def dataset_notes(files: Sequence[SourceFile]) -> Iterator[str]:
    """One line for each thing that packing a dataset again cannot give back.

    Raises:
        ConfigError: a table of a dataset is damaged.
    """
    for file in files:
        if file.kind != DATASET:
            continue
        source = open_dataset(file)
        counts, found = source.manifest.counts, Counter(source.reject_codes())
        above = ", ".join(f"{code} {found[code]}" for code in OF_SIZE if found[code])
        if above:
            yield (
                f"{file.label}: documents that it rejected for their size are not in it ({above}); "
                "to have them at another size, pack its source"
            )
        if counts.truncated_tokens:
            was = "split with tokens in no piece stay in these pieces, or are rejected at another size"
            stays = was if source.config.oversize == "split" else "cut short stay so"
            yield f"{file.label}: documents that were {stays} ({counts.truncated_tokens:,} tokens are gone)"
        if counts.left_out:
            yield f"{file.label}: documents that its mixture left out are not in it ({counts.left_out:,})"
