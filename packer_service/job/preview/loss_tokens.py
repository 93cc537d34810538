"""Tokens under loss in the packs of a step and on the ranks of a pack, counted in samples, as no table has them.

A token without loss has no logits, while the cost of a pack counts them for all of its tokens.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np
from jaxtyping import Int64

from preshard.packer_service.ingest.packed.dataset import PackedDatasetSource
from preshard.packer_service.ingest.packed.manifest import dataset_file, dataset_manifest
from preshard.packer_service.plan.order import straggler_ratio, window_sizes
from preshard.packer_service.report.dataset import open_dataset
from preshard.packer_service.report.records import LossTokens
from preshard.schemas.errors import ConfigError, ReaderError
from preshard.schemas.layout import TokenLayout
from preshard.schemas.sequence import IGNORE_INDEX

SAMPLED = 512
"""Packs that are read at most: some seconds, and for each the bytes of its arrays."""

LOADED = 16
"""Packs that are read at the same time."""


def count_loss_tokens(location: str) -> LossTokens:
    """Counts the tokens under loss of whole groups of the order of steps, spread evenly over a dataset.

    Raises:
        ConfigError: there is no such folder, or it is not a dataset.
        FormatError: the dataset is broken.
        ReaderError: the layouts of a sample are damaged.
    """
    _, manifest = open_dataset(location)
    sealed = dataset_manifest(location)
    if sealed is None:
        raise ConfigError(f"DATASET {location}: is not a dataset of preshard")
    source = PackedDatasetSource.of(dataset_file(location, location, sealed))
    packs, window = sampled_packs(manifest.counts.packs, source.config.order.window), source.config.order.window
    counts, imbalance = list[int](), defaultdict[tuple[str, int], list[float]](list)
    for number, pack_id in enumerate(packs):
        if number % LOADED == 0:
            source.load(packs[number : number + LOADED])
        stored = source.pack(pack_id)
        learnt, layouts = stored.sequence.labels != IGNORE_INDEX, stored.layouts()[0]
        if not layouts:
            raise ReaderError(f"{stored.where}: its layouts are damaged; preshard verify says more")
        counts.append(int(learnt.sum()))
        for layout in layouts.values():
            if counts[-1]:
                of_ranks = loss_of_ranks(layout, learnt)
                imbalance[layout.scheme, layout.ring_degree].append(float(of_ranks.max() / of_ranks.mean()))
    ranks: dict[str, dict[int, float]] = {}
    for (scheme, degree), values in imbalance.items():
        ranks.setdefault(scheme, {})[degree] = float(np.mean(values))
    sizes = [size for size in window_sizes(window) if size & (size - 1) == 0 and size <= len(packs)]
    return LossTokens(
        packs=len(packs),
        mean=float(np.mean(counts)) if counts else 0.0,
        straggler={size: straggler_ratio(np.array(counts, np.float64), size) for size in sizes},
        ranks=ranks,
    )


def sampled_packs(n_packs: int, window: int) -> list[int]:
    """All packs where they are few, else whole groups of the order of steps, or parts of them, at even distances."""
    if n_packs <= SAMPLED:
        return list(range(n_packs))
    width = max(size for size in window_sizes(window) if size <= SAMPLED)
    n_groups, wanted = n_packs // width, SAMPLED // width
    firsts = [width * (n_groups * number // wanted) for number in range(wanted)]
    return [first + place for first in firsts for place in range(width)]


def loss_of_ranks(layout: TokenLayout, learnt: np.ndarray) -> Int64[np.ndarray, "ranks"]:
    """Tokens under loss of each ring rank.

    Args:
        layout: whose runs are ``(rank, start, length)``.
        learnt: of each token of the pack, in natural order, whether it has a label.
    """
    before = np.concatenate([[0], np.cumsum(learnt)])
    rank, start, length = layout.runs.T
    counts = np.zeros(layout.ring_degree, np.int64)
    np.add.at(counts, rank, before[start + length] - before[start])
    return counts
