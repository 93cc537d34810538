"""``preshard advise``: advice for a dataset, from its manifest, two of its tables, and the masks of a few packs."""

from __future__ import annotations

import pyarrow as pa

from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.plan.records import FillLimit
from preshard.packer_service.report.advice.answer import Advisor
from preshard.packer_service.report.advice.estimate.derived import PackMask, not_derived, with_derived
from preshard.packer_service.report.advice.estimate.loads import COLUMNS, PackLoads, read_pack_loads
from preshard.packer_service.report.advice.figures import Advice
from preshard.packer_service.report.advice.model import configured_sizes, folder_sizes
from preshard.packer_service.report.advice.question import MODEL_KEYS, AdviceQuestion
from preshard.packer_service.report.dataset import dataset_limit, open_dataset, warnings_of
from preshard.packer_service.report.tables import open_measures, read_packs
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.manifest_parts import stored_config
from preshard.schemas.errors import ConfigError, PreshardError, ShardMissing
from preshard.schemas.files.filesystem import read_within
from preshard.schemas.header import decode_header
from preshard.schemas.manifest import SHARDS, ManifestHead, encoder_of
from preshard.schemas.members import sample_key, shard_name
from preshard.schemas.model.dimensions import ModelDimensions

PLACE = ("offset", "header_size", "head_crc32c")
"""Columns of ``packs.parquet`` that say where a pack's mask lies."""


def advise_dataset(location: str, question: AdviceQuestion, model: str | None = None) -> Advice:
    """The splits with which a dataset trains fastest.

    Args:
        location: the dataset.
        question: devices and assumptions.
        model: a model folder whose dimensions stand in place of the dataset's ``cost``.

    Raises:
        ConfigError: there is no such folder, it is not a dataset, or it has no packs; or the model folder is none.
        FormatError: the dataset is broken.
    """
    folder, manifest = open_dataset(location)
    config = stored_config(manifest)
    sizes, notes = advised_model(manifest, config, question, model)
    if not manifest.counts.packs:
        raise ConfigError(f"DATASET {location}: has no packs, so there is nothing to split")
    loads, unread = _read(folder, manifest, config, question.gpus)
    notes = (*limit_notes(dataset_limit(folder)), *notes, *unread)
    return Advisor(config=config, sizes=sizes, question=question, loads=loads, notes=notes).advice()


def limit_notes(limit: FillLimit | None) -> tuple[str, ...]:
    """Notes on packs that are not full: every split computes their padding as well."""
    return (limit.message,) if limit is not None else ()


def advised_model(
    manifest: ManifestHead, config: PackConfig, question: AdviceQuestion, folder: str | None = None
) -> tuple[ModelDimensions, tuple[str, ...]]:
    """The model that the advice is for, and what is to be said of it.

    Raises:
        ConfigError: the folder is no model folder of a known kind, or the question gives a dimension besides.
    """
    encoder = encoder_of(manifest.model.settings) if manifest.model else None
    if folder is not None:
        if given := [name for name in MODEL_KEYS if getattr(question, name) is not None]:
            raise ConfigError(
                f"advise: {given[0]} contradicts --model {folder}, whose config.json decides it; leave it out"
            )
        return folder_sizes(folder), ("image work is that of the encoder that the dataset was packed for",)
    cost = question.model_of(config.cost)
    warnings = warnings_of(manifest, config.model_copy(update={"cost": cost}))
    return configured_sizes(cost, config.vision, encoder, "the dataset's cost"), tuple(warnings)


def _read(folder: Folder, manifest: ManifestHead, config: PackConfig, gpus: int) -> tuple[PackLoads, tuple[str, ...]]:
    packs = read_packs(folder, (*COLUMNS, *PLACE), manifest.counts.packs)
    layers = manifest.model.masks if manifest.model else None
    with open_measures(folder, config, manifest.counts.packs) as measures:
        loads = read_pack_loads(measures, lambda name: packs[name].to_numpy(), gpus=gpus, layers=layers)
    try:
        return with_derived(loads, config, gpus, lambda pack: _mask(folder, manifest, config, packs, pack)), ()
    except (PreshardError, OSError) as error:
        return loads, (not_derived(str(error)),)


def _mask(folder: Folder, manifest: ManifestHead, config: PackConfig, packs: pa.Table, pack: int) -> PackMask:
    """
    Raises:
        FormatError: the pack's shard is missing, or its sample is not what the format says.
    """
    offset, header_size, checksum = (packs[name][pack].as_py() for name in PLACE)
    name = f"{SHARDS}/{shard_name(pack // config.packs_per_shard)}"
    try:
        with folder.open(name) as file:
            data = read_within(file, offset, header_size)
    except FileNotFoundError:
        raise ShardMissing(name, "is not there") from None
    where = f"{name}, sample {sample_key(pack)}"
    header = decode_header(data, pack, checksum, config, axes=manifest.axes, where=where)
    return PackMask.of(MaskIndex.of(header.sequence.mask), header.head.documents)
