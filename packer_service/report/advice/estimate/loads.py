"""Inputs of the estimates from a dataset: some columns of its packs, and the loads of some blocks of packs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64

from preshard.packer_service.report.measures import Measures, read_numbers
from preshard.schemas.dataset.measures import MeasureGroup, MeasureOrder
from preshard.schemas.manifest import LayerMasks

PARTS = 4
"""Equal parts of a large dataset, of each of which packs are read that lie in one block."""

SAMPLED_PACKS = 4096
"""Packs that are looked at where there are more, and every split is estimated for each. The standard error of a mean
over packs that are drawn by chance would be a 64th of their standard deviation."""

COLUMNS = ("n_tokens", "n_units", "n_patches", "n_pooled_tokens", "load", "attention_tiles")
"""Columns of ``packs.parquet`` that are read."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SlowestRank:
    """Load of a layout's slowest rank, pack by pack.

    Attributes:
        gather_path: most tiles of a rank; of a model with windows, of its layers on average.
        ring_steps: most tiles of a rank in each step of a ring, likewise.
        most_keys: most keys that a rank needs and does not hold, in the layer that needs most.
        mean_keys: the same of its layers on average, where they differ.
    """

    gather_path: Int64[np.ndarray, "packs"]
    ring_steps: Int64[np.ndarray, "ring packs"]
    most_keys: Int64[np.ndarray, "packs"]
    mean_keys: Int64[np.ndarray, "packs"] | None = None

    @property
    def moved_keys(self) -> Int64[np.ndarray, "packs"]:
        """Most keys that a rank fetches for a layer, on average."""
        return self.most_keys if self.mean_keys is None else self.mean_keys


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PackLoads:
    """Loads of ranks from the sampled packs.

    Attributes:
        n_packs: packs of the dataset.
        spans: the sampled packs, as ranges of consecutive ones.
        columns: :data:`COLUMNS` of them.
        layouts: by scheme and ring degree.
        images: the vision encoder's work on the busiest rank, by CP size.
        derived: those of ``layouts`` that were not packed.
        masks: packs whose masks were read to derive them.
        windows: whether some layers have a sliding window.
    """

    n_packs: int
    spans: tuple[range, ...]
    columns: Mapping[str, Int64[np.ndarray, "packs"]]
    layouts: Mapping[tuple[str, int], SlowestRank]
    images: Mapping[int, Int64[np.ndarray, "packs"]]
    derived: frozenset[tuple[str, int]] = frozenset()
    masks: int = 0
    windows: bool = False

    @property
    def sampled(self) -> int:
        return sum(map(len, self.spans))

    def largest_image_load(self, cp_size: int) -> Float64[np.ndarray, "packs"]:
        """Work of the busiest rank; at a CP size that is not stored, as if all units of a pack were equal."""
        load = self.columns["load"].astype(np.float64)
        if cp_size == 1:
            return load
        if cp_size in self.images:
            return self.images[cp_size].astype(np.float64)
        units = np.maximum(self.columns["n_units"], 1)
        return load * -(-units // cp_size) / units

    def steps(self, dp_size: int) -> Int64[np.ndarray, "steps dp"]:
        """Places of the packs of whole steps among the sampled ones, as a trainer takes them; at least one step."""
        found, before = [], 0
        for span in self.spans:
            first = -(-span.start // dp_size) * dp_size - span.start
            steps = max(len(span) - first, 0) // dp_size
            found.append(before + first + np.arange(steps * dp_size).reshape(steps, dp_size))
            before += len(span)
        whole = np.concatenate(found) if found else np.zeros((0, dp_size), np.int64)
        if len(whole):
            return whole
        steps = max(before // dp_size, 1)
        width = min(dp_size, before)
        return np.arange(steps * width).reshape(steps, width)


def sampled_spans(order: MeasureOrder) -> tuple[range, ...]:
    """The packs that are looked at: all of them, or a stretch of each of several equal parts, always the same ones."""
    if order.n_packs <= SAMPLED_PACKS:
        return (range(order.n_packs),) if order.n_packs else ()
    block = order.block_packs
    each = min(SAMPLED_PACKS // PARTS, block)
    spans = []
    for number in range(PARTS):
        least, middle = number * order.n_packs // PARTS, ((2 * number + 1) * order.n_packs // PARTS - each) // 2
        first = max(min(middle, middle // block * block + block - each), least)  # within a block, where that may be
        spans.append(range(first, first + each))
    return tuple(spans)


def read_pack_loads(
    measures: Measures, column: Callable[[str], np.ndarray], *, gpus: int, layers: LayerMasks | None = None
) -> PackLoads:
    """Reads what the estimates for a number of devices need.

    Args:
        measures: the rows of ``measures.parquet``.
        column: a column of ``packs.parquet``.
        gpus: degrees that do not divide it are left out.
        layers: the model's layers by their masks, where they have two: tiles are then those of its layers on average.
    """
    order = MeasureOrder.of(measures.config, measures.n_packs)
    spans = sampled_spans(order)

    def read(group: MeasureGroup, name: str) -> np.ndarray:
        return np.concatenate([read_numbers(measures, group, name, span) for span in (range(0), *spans)])

    def mean(group: MeasureGroup, name: str) -> np.ndarray:
        if layers is None:
            return read(group, name)
        both = layers.full_layers * read(group, name) + layers.window_layers * read(group, f"window_{name}")
        return np.rint(both / (layers.full_layers + layers.window_layers)).astype(np.int64)

    def sampled(values: np.ndarray) -> np.ndarray:
        return np.concatenate([values[:0], *(values[span.start : span.stop] for span in spans)])

    wanted = [group for group in order.groups if gpus % group.degree == 0]
    columns = {name: sampled(column(name)) for name in COLUMNS}
    if layers is not None and (layouts := [group for group in order.groups if group.scheme]):
        columns["attention_tiles"] = mean(layouts[0], "attention_tiles")  # the same for every layout
    return PackLoads(
        n_packs=order.n_packs,
        spans=spans,
        columns=columns,
        windows=layers is not None,
        layouts={
            (group.scheme, group.degree): SlowestRank(
                gather_path=mean(group, "gather_path"),
                ring_steps=mean(group, "ring_steps").T,
                most_keys=read(group, "most_keys"),
                mean_keys=None if layers is None else mean(group, "most_keys"),
            )
            for group in wanted
            if group.scheme
        },
        images={group.degree: read(group, "most_image_load") for group in wanted if group.scheme is None},
    )
