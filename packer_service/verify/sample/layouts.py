"""The rules of a sample's token layouts: which there are, that each is a partition, as defined, with its needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from jaxtyping import Bool, Int32

from preshard.packer_service.verify.independent.formulas import contiguous, zigzag
from preshard.packer_service.verify.verdict import Finding
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.measures import measure_groups
from preshard.schemas.errors import (
    LayoutError,
    LayoutNeedsInvalid,
    LayoutNotPartition,
    LayoutSchemeInvalid,
    LayoutsInvalid,
)
from preshard.schemas.header import DocumentSpan
from preshard.schemas.layout import BLOCK_SCHEMES, TokenLayout, check_partition, layout_name
from preshard.schemas.manifest import LayerMasks


def layout_names(config: PackConfig) -> list[str]:
    """Names of every layout that a sample holds, in the order in which they are stored."""
    return [layout_name(group.scheme, group.degree) for group in measure_groups(config) if group.scheme]


def contents(layout: TokenLayout) -> tuple[int, bytes]:
    """Tokens of every rank: layouts of which this is equal are one, whatever their names."""
    return layout.ring_degree, layout.runs.tobytes()


def check_names(layouts: dict[str, TokenLayout], config: PackConfig, masks: LayerMasks | None) -> Iterator[Finding]:
    """Every configured layout is there, and no other, in the format's order, with the needs of all masks."""
    names = layout_names(config)
    if list(layouts) != names:
        yield LayoutsInvalid, f"KEY.layouts.npz holds {list(layouts)}, not {names}"
    for layout in layouts.values():
        if (layout.window_needs is None) != (masks is None):
            found, asked = ("without", "has") if layout.window_needs is None else ("with", "has no")
            yield LayoutsInvalid, f"{layout.name} is {found} window_needs, and the model {asked} masks in the manifest"


def check_partitions(layouts: dict[str, TokenLayout], config: PackConfig) -> Iterator[Finding]:
    """Every layout gives each token to exactly one rank, in equal slices, rank after rank."""
    sound = set[tuple[int, bytes]]()
    for layout in layouts.values():
        if contents(layout) in sound:
            continue
        try:
            check_partition(layout, config.seq_len)
            sound.add(contents(layout))
        except LayoutError as error:
            yield LayoutNotPartition, str(error)


def check_schemes(layouts: dict[str, TokenLayout], spans: list[DocumentSpan], config: PackConfig) -> Iterator[Finding]:
    """``contiguous`` and ``zigzag`` are as they are defined; the balanced schemes deal whole blocks in natural order.

    Partitions and spans must be sound. The format has no rule that a balanced layout must be a good one.
    """
    for name, layout in layouts.items():
        if layout.scheme == "contiguous":
            yield from _check_runs(name, layout.runs, contiguous(config.seq_len, layout.ring_degree))
        elif layout.scheme == "zigzag":
            documents = [(span.start, span.start + span.aligned_length) for span in spans]
            defined = zigzag(documents, config.seq_len, layout.ring_degree)
            yield from _check_runs(name, layout.runs, defined)
        elif layout.scheme in BLOCK_SCHEMES:  # the rule of the layouts' names sees to any other
            yield from _check_blocks(name, layout.runs, config.block_size)


def _check_runs(name: str, found: Int32[np.ndarray, "runs 3"], defined: list[list[int]]) -> Iterator[Finding]:
    if len(found) != len(defined):
        yield LayoutSchemeInvalid, f"{name} has {len(found)} rows; its definition gives {len(defined)}"
    for number, (row, asked) in enumerate(zip(found.tolist(), defined, strict=False)):
        if row != asked:
            yield LayoutSchemeInvalid, f"{name}[{number}] is {row}; its definition gives {asked}"
            return


def _check_blocks(name: str, runs: Int32[np.ndarray, "runs 3"], block_size: int) -> Iterator[Finding]:
    cut = np.flatnonzero((runs[:, 1] % block_size != 0) | (runs[:, 2] % block_size != 0))
    if len(cut):
        yield LayoutSchemeInvalid, f"{name}[{cut[0]}] is {runs[cut[0]].tolist()}, not whole blocks of {block_size}"
    back = np.flatnonzero((np.diff(runs[:, 0]) == 0) & (np.diff(runs[:, 1]) < 0))
    if len(back):
        row = int(back[0]) + 1
        yield LayoutSchemeInvalid, f"{name}[{row}] is {runs[row].tolist()}: before its rank's row {row - 1}"


def check_needs(
    name: str, needs: Bool[np.ndarray, "ring blocks"], expected: Bool[np.ndarray, "ring blocks"]
) -> Iterator[Finding]:
    """Needs mark exactly the key blocks that some query of each rank sees under their mask."""
    wrong = np.argwhere(needs != expected)
    if len(wrong):
        rank, block = wrong[0].tolist()
        found, asked = bool(needs[rank, block]), bool(expected[rank, block])
        others = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        yield LayoutNeedsInvalid, f"{name}[{rank}, {block}] is {found}, not {asked}{others}"
