"""What advice reads of a served dataset."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np

from preshard.packer_service.http.dataset.cache import size_of
from preshard.packer_service.http.dataset.derived import save_values
from preshard.packer_service.http.dataset.reader import Dataset
from preshard.packer_service.http.dataset.sample import read_sample
from preshard.packer_service.http.problems import ProblemError
from preshard.packer_service.report.advice.derived import PackMask, not_derived, with_derived
from preshard.packer_service.report.advice.loads import PackLoads, SlowestRank, read_pack_loads, sampled_loads
from preshard.packer_service.report.loads import StoredLoads
from preshard.schemas.errors import LayoutError

LOADS = "advice-loads"
"""What is kept of the sampled packs' loads: for each group of loads its rows, each with a value for each pack."""


def pack_loads(dataset: Dataset, gpus: int) -> tuple[PackLoads, tuple[str, ...]]:
    """Loads of all packs, or of some of a large dataset, kept while there is room; and what could not be read.

    Raises:
        ProblemError: 409 the tables are damaged; 503 they cannot be read at the moment.
    """
    try:
        return dataset.kept(("advice", gpus), lambda: _derived(dataset, gpus), size_of), ()
    except LayoutError as error:
        return _stored(dataset, gpus), (not_derived(str(error)),)
    except ProblemError as error:
        if dataset.broken:
            raise
        return _stored(dataset, gpus), (not_derived(error.detail),)


def _derived(dataset: Dataset, gpus: int) -> PackLoads:
    """The stored loads, and those of layouts that a reader derives."""

    def mask(pack: int) -> PackMask:
        sample = read_sample(dataset, pack)
        return PackMask.of(sample.index, sample.head.documents)

    return with_derived(_stored(dataset, gpus), dataset.config, gpus, mask)


def _stored(dataset: Dataset, gpus: int) -> PackLoads:
    return dataset.kept(("stored advice", gpus), lambda: _kept_or_read(dataset, gpus), size_of)


def _kept_or_read(dataset: Dataset, gpus: int) -> PackLoads:
    kept = dataset.derived.values(LOADS) if dataset.derived else None
    if kept is None:
        return _read(dataset, gpus)
    rows = iter(kept)
    layouts: dict[tuple[str, int], SlowestRank] = {}
    images: dict[int, np.ndarray] = {}
    for group in dataset.order.groups:  # as they were kept, those that are not asked for as well
        if group.scheme is None:
            images[group.degree] = next(rows)
        else:
            steps = np.stack([next(rows) for _ in range(group.degree)])
            layouts[group.scheme, group.degree] = SlowestRank(
                ring_steps=steps, gather_path=next(rows), most_keys=next(rows)
            )
    return sampled_loads(
        dataset.order,
        lambda name: dataset.numbers("packs.parquet", name),
        {place: found for place, found in layouts.items() if gpus % place[1] == 0},
        {size: found for size, found in images.items() if gpus % size == 0},
    )


def keep_loads(dataset: Dataset, folder: Path) -> None:
    """Writes the loads that advice reads, of every group of ``balance.parquet`` and all that is sampled."""
    loads, rows = _read(dataset, math.lcm(*(group.degree for group in dataset.order.groups))), list[np.ndarray]()
    for group in dataset.order.groups:
        if group.scheme is None:
            rows.append(loads.images[group.degree])
        else:
            found = loads.layouts[group.scheme, group.degree]
            rows += [*found.ring_steps, found.gather_path, found.most_keys]
    save_values(folder, LOADS, np.stack(rows))


def _read(dataset: Dataset, gpus: int) -> PackLoads:
    with dataset.parquet("balance.parquet") as file:
        return read_pack_loads(
            dataset.order,
            lambda name: dataset.numbers("packs.parquet", name),
            StoredLoads(file, dataset.order).read,
            gpus=gpus,
        )
