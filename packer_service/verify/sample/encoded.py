"""The rules of a unit of a model: its grid, patches and load follow from its crops and the encoder's dimensions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from preshard.packer_service.verify.independent.formulas import unit_work
from preshard.packer_service.verify.verdict import Finding
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import UnitsInvalid
from preshard.schemas.header import SampleHead, StoredImage, Unit
from preshard.schemas.manifest import ModelEntry, VisionEncoder, encoder_of, tokens_per_second
from preshard.schemas.model.families import TILES

Patches = tuple[int, int]
"""Patches along height and width."""


class _UnusableError(ValueError):
    """A setting from which nothing can be derived."""


def check_tiled(
    number: int, unit: Unit, n_crops: int, tile: Patches, encoder: VisionEncoder, model: ModelEntry
) -> Iterator[Finding]:
    """A unit's grid is laid out of its tiles, and its rows are what the model makes of them.

    Args:
        number: of the unit in its pack.
        unit: as stored; its crops are of one size.
        n_crops: crops of the unit.
        tile: patches of each of them.
        encoder: of the model.
        model: the manifest's, whose units are not grids.
    """
    try:
        asked = model.settings.get("inputs")
        derive = _DERIVED.get(TILES.get(str(asked)))
        if derive is None:
            legal = ", ".join(inputs for inputs, how in TILES.items() if how)
            raise _UnusableError(f"settings.inputs is {asked!r}, none of {legal}")
        tiles = _tiles_of_grid(unit, tile, sum(_pair(model.settings, "overlap_margins", 0, (0, 0))))
        if tiles is None:
            yield UnitsInvalid, f"units[{number}].grid is {unit.grid}, not whole tiles of {tile[0]} x {tile[1]} patches"
            return
        crops, rows = derive(unit, tiles, tile, encoder, model.settings)
    except _UnusableError as error:
        yield UnitsInvalid, f"units[{number}] cannot be derived: the manifest's model has {error}"
        return
    if n_crops != crops:
        yield UnitsInvalid, f"units[{number}].grid is {unit.grid}, of {crops} crops, not of its {n_crops}"
    elif unit.rows != rows:
        yield UnitsInvalid, f"units[{number}].rows is {unit.rows}, not {rows} for its grid {unit.grid}"


def _tiles_of_grid(unit: Unit, tile: Patches, margin: int) -> int | None:
    """Number of tiles in the grid, where neighbours share ``margin`` patches; None for parts of tiles."""
    steps, rests = ([side - margin for side in sides] for sides in (tile, unit.grid[1:]))
    if min(steps) < 1:
        raise _UnusableError(f"overlap_margins of {margin} patches in all, and tiles of {tile[0]} x {tile[1]}")
    if unit.grid[0] != 1 or any(rest < step or rest % step for rest, step in zip(rests, steps, strict=True)):
        return None
    return math.prod(rest // step for rest, step in zip(rests, steps, strict=True))


def _pair(settings: Mapping[str, Any], name: str, least: int, default: Patches | None = None) -> Patches:
    value = settings.get(name, default)
    is_pair = isinstance(value, list | tuple) and len(value) == 2
    if not is_pair or any(isinstance(side, bool) or not isinstance(side, int) or side < least for side in value):
        raise _UnusableError(f"settings.{name} {value!r}, not two numbers of at least {least}")
    return value[0], value[1]


def _with_thumbnail(
    unit: Unit,  # noqa: ARG001
    tiles: int,
    tile: Patches,
    encoder: VisionEncoder,
    settings: Mapping[str, Any],  # noqa: ARG001
) -> tuple[int, int]:
    """Crops and rows: a thumbnail stands behind several tiles, and a row takes the patches of a square."""
    side = math.isqrt(encoder.row_inputs // encoder.hidden_size) if encoder.hidden_size else 0
    if not side:
        raise _UnusableError(f"rows of {encoder.row_inputs} inputs, from patches of {encoder.hidden_size}")
    crops = tiles + 1 if tiles > 1 else 1
    return crops, crops * (tile[0] // side) * (tile[1] // side)


def _overlapping(
    unit: Unit,
    tiles: int,
    tile: Patches,
    encoder: VisionEncoder,  # noqa: ARG001
    settings: Mapping[str, Any],
) -> tuple[int, int]:
    """Crops and rows: a still image has those of the whole and of its tiles together, a frame of the whole alone."""
    if unit.kind != "image":
        return tiles, _count_pooled(tile, _pair(settings, "video_pooling", 1))
    pooling = _pair(settings, "image_pooling", 1)
    return tiles + 1, _count_pooled(tile, pooling) + _count_pooled((unit.grid[1], unit.grid[2]), pooling)


def _count_pooled(patches: Patches, pooling: Patches) -> int:
    return -(-patches[0] // pooling[0]) * -(-patches[1] // pooling[1])


def _whole(
    unit: Unit,  # noqa: ARG001
    tiles: int,
    tile: Patches,
    encoder: VisionEncoder,  # noqa: ARG001
    settings: Mapping[str, Any],
) -> tuple[int, int]:
    """Crops and rows of pictures that are not cut: a row takes the patches of a square."""
    side = settings.get("pooling")
    if isinstance(side, bool) or not isinstance(side, int) or side < 1:
        raise _UnusableError(f"settings.pooling {side!r}, not a number of at least 1")
    return tiles, tiles * (tile[0] // side) * (tile[1] // side)


_DERIVED: dict[str | None, Callable[..., tuple[int, int]]] = {
    "whole": _whole,
    "thumbnail": _with_thumbnail,
    "overlapping": _overlapping,
}


def check_encoded(head: SampleHead, config: PackConfig, model: ModelEntry) -> Iterator[Finding]:
    """Units are what the encoder makes of their crops. Bounds, rows and the units' number must be sound."""
    encoder = encoder_of(model.settings)
    if encoder is None:
        if head.units:
            yield UnitsInvalid, f"there are {len(head.units)} units, and the manifest's model has no settings.encoder"
        return
    edges = [0, *head.cum_image_bounds]
    if len(head.images) != edges[-1]:
        return  # the rule of images names it
    crops = [head.images[start:end] for start, end in pairwise(edges)]
    for number, (unit, own) in enumerate(zip(head.units, crops, strict=True)):
        sizes = {(image.width, image.height) for image in own}
        if len(sizes) > 1:
            yield UnitsInvalid, f"units[{number}] has crops of the sizes {sorted(sizes)}, not of one size"
        else:
            yield from _compare(number, unit, _derive(unit, own, encoder, model))
            if not model.has_grids:
                tile = (own[0].height // encoder.patch_size[0], own[0].width // encoder.patch_size[1])
                yield from check_tiled(number, unit, len(own), tile, encoder, model)
    yield from _check_time_steps(head, crops, encoder, config, model)


def _compare(number: int, unit: Unit, asked: dict[str, Any]) -> Iterator[Finding]:
    for name, value in asked.items():
        if getattr(unit, name) != value:
            yield UnitsInvalid, f"units[{number}].{name} is {getattr(unit, name)}, not {value}"


def _derive(
    unit: Unit, crops: Sequence[StoredImage], encoder: VisionEncoder, model: ModelEntry
) -> dict[str, list[int] | int]:
    """Patches, load and grid of crops of one size: those that share patches are one sequence, others one each."""
    tall, wide = crops[0].height // encoder.patch_size[0], crops[0].width // encoder.patch_size[1]
    sequences = -(-len(crops) // encoder.temporal_patch_size)
    asked: dict[str, list[int] | int] = {
        "patches": sequences * tall * wide,
        "load": unit_work(encoder, [(tall, wide)] * sequences, unit.rows),
    }
    return asked | ({"grid": [sequences, tall, wide]} if model.has_grids else {})


def _check_time_steps(
    head: SampleHead,
    crops: Sequence[Sequence[StoredImage]],
    encoder: VisionEncoder,
    config: PackConfig,
    model: ModelEntry,
) -> Iterator[Finding]:
    """All units of an image or video have the step of their times, or of the whole where only a part is here."""
    listed = ((number, head.units[number]) for number in head.token_order)
    for _, group in groupby(listed, key=lambda each: (each[1].document, each[1].medium)):
        numbers, units = zip(*group, strict=True)
        times = [image.timestamp for number in numbers for image in crops[number]]
        if units[0].kind != "image" and None in times:
            continue  # the rule of images names it
        if _follows_time(units[0], model) and _may_be_a_part(head, units, config):
            asked = units[0].time_step
        else:
            asked = _time_step(units[0], [time or 0.0 for time in times], encoder, model)
        for number, unit in zip(numbers, units, strict=True):
            yield from _compare(number, unit, {"time_step": asked})


def _follows_time(unit: Unit, model: ModelEntry) -> bool:
    return model.axes == 3 and unit.kind != "image" and tokens_per_second(model.settings) is not None


def _may_be_a_part(head: SampleHead, units: Sequence[Unit], config: PackConfig) -> bool:
    """Whether other units of the same video may lie in another piece, or be lost: only a piece's ends are cut."""
    span = head.documents[units[0].document]
    touches = units[0].start == span.start or units[-1].end == span.start + span.length
    return config.oversize != "reject" and touches


def _time_step(unit: Unit, times: Sequence[float], encoder: VisionEncoder, model: ModelEntry) -> float:
    """Growth of the temporal position between units, by the mean time between frames; float32, as the model's own."""
    per_second = tokens_per_second(model.settings)
    if model.axes != 3:
        return 0.0
    if unit.kind == "image" or per_second is None or times[-1] <= times[0]:
        return 1.0
    rate = (len(times) - 1) / (times[-1] - times[0])
    return float(np.float32(per_second) * np.float32(encoder.temporal_patch_size / rate))
