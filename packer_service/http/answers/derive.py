"""Derives what answers about a large dataset need: once, a group of loads at a time, by the functions that answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from jaxtyping import Float64

from preshard.packer_service.http.answers.compared import compared
from preshard.packer_service.http.answers.measures import (
    IMAGE_MEASURES,
    LAYOUT_MEASURES,
    image_figures,
    layout_figures,
    means_of_shards,
    measure_name,
    preferred_figures,
    shard_means_name,
)
from preshard.packer_service.http.answers.overview import overview
from preshard.packer_service.http.dataset.advice import keep_loads
from preshard.packer_service.http.dataset.derived import DerivedFolder, pack_column, save_values
from preshard.packer_service.http.dataset.derived_rows import CODES, EDGES, HASHES, IDS, NUMBERS, ROWS
from preshard.packer_service.http.dataset.loads import image_loads, layout_loads
from preshard.packer_service.http.dataset.reader import Dataset
from preshard.packer_service.http.models.balance import Chosen
from preshard.packer_service.report.balance import Cheapest, image_balance, layout_balance
from preshard.packer_service.report.loads import numbers_of
from preshard.schemas.document_ids import hash_ids
from preshard.schemas.tables import PACKS

MOST_INDEXED = 15_000_000
"""Documents of which rows are kept: while they are written, they take some 80 bytes of memory each."""


def derive(dataset: Dataset, to: DerivedFolder) -> None:
    """Keeps the figures and values of a dataset, unless something has kept them meanwhile.

    Raises:
        ProblemError: the dataset is damaged, or cannot be read.
        OSError: the folder cannot be written.
    """
    if to.is_writable() and not to.has(dataset.tag):
        to.write(dataset.tag, lambda folder: _derive(dataset, folder))


def _derive(dataset: Dataset, folder: Path) -> dict[str, Any]:
    for field in PACKS:
        if pa.types.is_integer(field.type) or pa.types.is_floating(field.type):
            save_values(folder, pack_column(field.name), dataset.numbers("packs.parquet", field.name))
    dataset.shards.keep(folder)
    keep_loads(dataset, folder)
    figures = {**_layouts(dataset, folder), **_images(dataset, folder)}
    figures["overview"] = overview(dataset).model_dump(mode="json")
    figures["compared"] = compared(dataset).model_dump(mode="json")
    if dataset.n_rows("documents.parquet") <= MOST_INDEXED:
        figures["sources"] = _documents(dataset, folder)
    return figures


def _layouts(dataset: Dataset, folder: Path) -> dict[str, Any]:
    figures: dict[str, Any] = {}
    layouts, every = list(dataset.config.layouts), range(dataset.n_packs)
    for degree in sorted(dataset.config.ring_degrees):
        cheapest = Cheapest(dataset.n_packs)
        for layout in layouts:
            loads = layout_loads(dataset, layout, degree, every)
            for name in LAYOUT_MEASURES:
                chosen = Chosen(layout=layout, ring_degree=degree, cp_size=1)
                _save_measure(dataset, folder, measure_name(name, chosen), getattr(loads, name))
            figures[layout_figures(layout, degree)] = layout_balance(loads, layout, degree).model_dump(mode="json")
            figures[preferred_figures([layout], degree)] = {layout: dataset.n_packs} if dataset.n_packs else {}
            cheapest.add(layout, loads.cost)
        figures[preferred_figures(layouts, degree)] = cheapest.counts()
    return figures


def _images(dataset: Dataset, folder: Path) -> dict[str, Any]:
    figures = {}
    for size in sorted(dataset.config.cp_sizes):
        loads = image_loads(dataset, size, range(dataset.n_packs))
        for name in IMAGE_MEASURES:
            chosen = Chosen(layout="", ring_degree=1, cp_size=size)
            _save_measure(dataset, folder, measure_name(name, chosen), getattr(loads, name))
        figures[image_figures(size)] = image_balance(loads, size).model_dump(mode="json")
    return figures


def _save_measure(dataset: Dataset, folder: Path, name: str, values: Float64[np.ndarray, "packs"]) -> None:
    save_values(folder, name, values)
    save_values(folder, shard_means_name(name), means_of_shards(values, dataset.shards.first_packs))


def _documents(dataset: Dataset, folder: Path) -> list[str]:
    """Keeps the columns of documents that lists show so that rows are found without decoding; returns the sources."""
    hashes, lengths, names, codes = [np.zeros(0, np.uint64)], list[np.ndarray](), dict[str, int](), list[np.ndarray]()
    columns: dict[str, list[np.ndarray]] = {name: [] for name in NUMBERS}
    with (folder / IDS).open("wb") as ids:
        for part in dataset.parts("documents.parquet", ("doc_id", "source", *NUMBERS)):
            own = part["doc_id"].combine_chunks()
            hashes.append(hash_ids(own))
            lengths.append(numbers_of(pa.chunked_array([pc.binary_length(own)])).astype(np.int64))
            ids.write(pc.binary_join(pa.array([own], pa.list_(pa.string())), "")[0].as_buffer())
            coded = part["source"].combine_chunks().dictionary_encode()
            known = [names.setdefault(source, len(names)) for source in coded.dictionary.to_pylist()]
            codes.append(np.array(known, np.int32)[coded.indices.to_numpy()])
            for name, values in columns.items():
                found = numbers_of(part[name])
                values.append(found.astype(np.min_scalar_type(found.max(initial=0))))
    save_values(folder, EDGES, np.cumsum(np.concatenate([[0], *lengths])))
    save_values(folder, CODES, np.concatenate([np.zeros(0, np.int32), *codes]))
    for name, values in columns.items():
        save_values(folder, f"document-{name}", np.concatenate([np.zeros(0, np.uint8), *values]))
    joined = np.concatenate(hashes)
    rows = np.argsort(joined, kind="stable")
    save_values(folder, ROWS, rows)
    save_values(folder, HASHES, joined[rows])
    return list(names)
