"""The rules of a unit with one axis of positions: its grid and rows follow from its tiles and the model's settings."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from preshard.packer_service.verify.verdict import Finding
from preshard.schemas.encoder import VisionEncoder
from preshard.schemas.errors import UnitsInvalid
from preshard.schemas.manifest import ModelEntry, Unit

Patches = tuple[int, int]
"""Patches along height and width."""

INPUTS = "inputs"
"""Key of the manifest's settings that says how a model's inputs are made of its tiles."""


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
        model: the manifest's, with one axis of positions.
    """
    try:
        derive = _DERIVED.get(str(model.settings.get(INPUTS)))
        if derive is None:
            raise _UnusableError(f"settings.{INPUTS} is {model.settings.get(INPUTS)!r}, none of {', '.join(_DERIVED)}")
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
    """How many tiles the grid is of, where neighbours share ``margin`` patches; None for parts of tiles."""
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


def _internvl(
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


def _molmo2(
    unit: Unit,
    tiles: int,
    tile: Patches,
    encoder: VisionEncoder,  # noqa: ARG001
    settings: Mapping[str, Any],
) -> tuple[int, int]:
    """Crops and rows: a still image has those of the whole and of its tiles together, a frame of the whole alone."""
    if unit.kind != "image":
        return tiles, _pooled(tile, _pair(settings, "video_pooling", 1))
    pooling = _pair(settings, "image_pooling", 1)
    return tiles + 1, _pooled(tile, pooling) + _pooled((unit.grid[1], unit.grid[2]), pooling)


def _pooled(patches: Patches, pooling: Patches) -> int:
    return -(-patches[0] // pooling[0]) * -(-patches[1] // pooling[1])


_DERIVED: dict[str, Callable[..., tuple[int, int]]] = {"internvl": _internvl, "molmo2": _molmo2}
