"""Derives what answers about a large dataset need: once, a group of loads at a time, by the functions that answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from packer_service.http.answers.compared import compared
from packer_service.http.answers.measures import (
    IMAGE_MEASURES,
    LAYOUT_MEASURES,
    image_figures,
    layout_figures,
    measure_name,
    preferred_figures,
)
from packer_service.http.answers.overview import overview
from packer_service.http.dataset.derived import DerivedFolder, save_values
from packer_service.http.dataset.loads import image_loads, layout_loads
from packer_service.http.dataset.reader import Dataset
from packer_service.http.models.balance import Chosen
from packer_service.report.balance import Cheapest, image_balance, layout_balance
from schemas.document_ids import hash_ids

HASHES, ROWS = "id-hashes", "id-rows"
"""Names of the values by which a document is found: the hashes of all ids, ascending, and the row of each."""

MOST_INDEXED = 40_000_000
"""Documents up to which ids are indexed: sorting takes 24 bytes of memory for each."""


def derive(dataset: Dataset, to: DerivedFolder) -> None:
    """Keeps the figures and values of a dataset, unless something has kept them meanwhile.

    Raises:
        ProblemError: the dataset is damaged, or cannot be read.
        OSError: the folder cannot be written.
    """
    if to.is_writable() and not to.has(dataset.tag):
        to.write(dataset.tag, lambda folder: _derive(dataset, folder))


def _derive(dataset: Dataset, folder: Path) -> dict[str, Any]:
    figures = {**_layouts(dataset, folder), **_images(dataset, folder)}
    figures["overview"] = overview(dataset).model_dump(mode="json")
    figures["compared"] = compared(dataset).model_dump(mode="json")
    if dataset.n_rows("documents.parquet") <= MOST_INDEXED:
        _index(dataset, folder)
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
                save_values(folder, measure_name(name, chosen), getattr(loads, name))
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
            save_values(
                folder, measure_name(name, Chosen(layout="", ring_degree=1, cp_size=size)), getattr(loads, name)
            )
        figures[image_figures(size)] = image_balance(loads, size).model_dump(mode="json")
    return figures


def _index(dataset: Dataset, folder: Path) -> None:
    parts = [hash_ids(part["doc_id"]) for part in dataset.parts("documents.parquet", ("doc_id",))]
    hashes = np.concatenate([np.zeros(0, np.uint64), *parts])
    rows = np.argsort(hashes, kind="stable")
    save_values(folder, ROWS, rows)
    save_values(folder, HASHES, hashes[rows])
