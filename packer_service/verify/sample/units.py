"""The rules of a sample's units: their bounds, and what ``units`` says of each."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from jaxtyping import Int64

from preshard.packer_service.verify.independent.formulas import crop_work
from preshard.packer_service.verify.sample.encoded import check_encoded
from preshard.packer_service.verify.verdict import Finding
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import PoolingInvalid, UnitsInvalid
from preshard.schemas.header import SampleHead, Unit
from preshard.schemas.manifest import ModelEntry
from preshard.schemas.sequence import NOT_POOLED, PackedSequence


def check_bounds(head: SampleHead, config: PackConfig, model: ModelEntry | None) -> Iterator[Finding]:
    """Checks that both cumulative bounds count up, unit by unit."""
    images, pooled = head.cum_image_bounds, head.cum_token_pooling_bounds
    if len(images) != len(pooled):
        yield PoolingInvalid, f"cum_image_bounds has {len(images)} units, cum_token_pooling_bounds {len(pooled)}"
    yield from _check_square(head, config) if model is None else _check_ascending(head)


def _check_square(head: SampleHead, config: PackConfig) -> Iterator[Finding]:
    each, most = config.vision.pooled_per_crop, config.vision.max_crops + 1 if config.vision.max_crops > 1 else 1
    images, pooled = head.cum_image_bounds, head.cum_token_pooling_bounds
    for unit, (before, upto) in enumerate(zip([0, *images], images, strict=False)):
        if not 1 <= upto - before <= most:
            yield PoolingInvalid, f"unit {unit} has {upto - before} crops by cum_image_bounds, not 1 to {most}"
    for unit, (crops, rows) in enumerate(zip(images, pooled, strict=False)):
        if rows != crops * each:
            yield PoolingInvalid, f"cum_token_pooling_bounds[{unit}] is {rows}, not {crops} x {each}"


def _check_ascending(head: SampleHead) -> Iterator[Finding]:
    for name in ("cum_image_bounds", "cum_token_pooling_bounds"):
        bounds = getattr(head, name)
        for unit, (before, upto) in enumerate(zip([0, *bounds], bounds, strict=False)):
            if upto <= before:
                yield PoolingInvalid, f"{name}[{unit}] is {upto}, not above {before}"


def rows_in_tokens(head: SampleHead) -> Int64[np.ndarray, "rows"]:
    """The rows as the tokens that they fill follow each other."""
    bounds = [0, *head.cum_token_pooling_bounds]
    parts = [np.arange(bounds[unit], bounds[unit + 1]) for unit in head.token_order]
    return np.concatenate([np.zeros(0, np.int64), *parts])


def unit_of_row(head: SampleHead) -> Int64[np.ndarray, "rows"]:
    """The unit of each pooled row."""
    bounds = np.array(head.cum_token_pooling_bounds, np.int64)
    return np.repeat(np.arange(len(bounds)), np.diff(bounds, prepend=0))


def check_units(head: SampleHead, config: PackConfig, model: ModelEntry | None) -> Iterator[Finding]:
    """``units`` lists every unit of the bounds, as the crops, the documents and the model give it."""
    if len(head.units) != len(head.cum_image_bounds):
        yield UnitsInvalid, f"units lists {len(head.units)} units, cum_image_bounds {len(head.cum_image_bounds)}"
        return
    crops, rows = (
        np.diff(np.array(bounds, np.int64), prepend=0).tolist()
        for bounds in (head.cum_image_bounds, head.cum_token_pooling_bounds)
    )
    unowned = [number for number, unit in enumerate(head.units) if unit.document >= len(head.documents)]
    if unowned:
        document, count = head.units[unowned[0]].document, len(head.documents)
        yield UnitsInvalid, f"units[{unowned[0]}].document is {document}, not below {count}"
        return
    for number, unit in enumerate(head.units):
        asked = {"rows": rows[number]}
        asked |= _square(crops[number], config) if model is None else {}
        for name, value in asked.items():
            if getattr(unit, name) != value:
                yield UnitsInvalid, f"units[{number}].{name} is {getattr(unit, name)}, not {value}"
        if not unit.patches:
            yield UnitsInvalid, f"units[{number}].patches is 0, not at least 1"
        if model is not None and model.has_grids and unit.rows * model.merge**2 != math.prod(unit.grid):
            asked_rows = f"{model.merge} x {model.merge} patches of the grid {unit.grid}"
            yield UnitsInvalid, f"units[{number}].rows is {unit.rows}, not one for {asked_rows}"
    if model is not None:
        yield from check_encoded(head, config, model)
    yield from _check_media(head, model)
    yield from _check_totals(head, crops)


def _square(crops: int, config: PackConfig) -> dict[str, object]:
    """Grid, patches and load of a unit of so many crops in the generic way."""
    side = config.vision.image_size // config.vision.patch_size
    return {
        "grid": [crops, side, side],
        "patches": crops * side * side,
        "load": crops * crop_work(config.cost, config.vision),
        "time_step": 0,
    }


def check_ranges(head: SampleHead) -> Iterator[Finding]:
    """Ranges of tokens ascend without overlap, each inside its document, whose span must be sound."""
    free_from = 0
    for number in head.token_order:
        unit = head.units[number]
        name, found = f"units[{number}]", f"{unit.start} to {unit.end}"
        span = head.documents[unit.document]
        if unit.start < span.start or unit.end > span.start + span.length:
            inside = f"{span.start} to {span.start + span.length}"
            yield UnitsInvalid, f"{name} has the tokens {found}, not inside its document's {inside}"
        if unit.start < free_from or unit.end <= unit.start:
            yield UnitsInvalid, f"{name} has the tokens {found}, not a range from {free_from} on"
        free_from = unit.end


def _check_media(head: SampleHead, model: ModelEntry | None) -> Iterator[Finding]:
    """Images and videos of a document count from 0: a still image is one unit, and a video's frames go on until one of
    them is at 0.
    """
    before: Unit | None = None
    firsts, of_video = [0, *head.cum_image_bounds], "frames" if model is not None and model.has_grids else "frame"
    for number in head.token_order:
        unit = head.units[number]
        if unit.kind not in ("image", of_video):
            yield UnitsInvalid, f"units[{number}].kind is {unit.kind}, not image or {of_video}, as in the whole dataset"
        same = before if before is not None and before.document == unit.document else None
        goes_on = same is not None and unit.kind == same.kind != "image"
        begins = head.images[firsts[number] : firsts[number] + 1]
        if goes_on and begins and begins[0].unit == number:  # else the rule of images names it
            goes_on = begins[0].timestamp != 0
        asked = 0 if same is None else same.medium + (not goes_on)
        if unit.medium != asked:
            yield UnitsInvalid, f"units[{number}].medium is {unit.medium}, not {asked}, by its kind and its time"
        before = unit


def _check_totals(head: SampleHead, crops: list[int]) -> Iterator[Finding]:
    """A span counts its units, and adds up their crops, patches and loads."""
    for number, span in enumerate(head.documents):
        own = [(unit, count) for unit, count in zip(head.units, crops, strict=True) if unit.document == number]
        totals = {
            "n_units": len(own),
            "n_images": sum(count for _, count in own),
            "n_patches": sum(unit.patches for unit, _ in own),
            "load": sum(unit.load for unit, _ in own),
        }
        for name, asked in totals.items():
            if getattr(span, name) != asked:
                yield UnitsInvalid, f"documents[{number}].{name} is {getattr(span, name)}; its units give {asked}"


def check_unit_tokens(sequence: PackedSequence, head: SampleHead) -> Iterator[Finding]:
    """A unit's tokens are in one branch, and hold its own rows and no others. ``units`` and pooling must be sound."""
    at = np.flatnonzero(sequence.pool_ids != NOT_POOLED)
    owner = unit_of_row(head)[sequence.pool_ids[at]]
    starts, ends = (np.array([getattr(unit, name) for unit in head.units], np.int64) for name in ("start", "end"))
    outside = np.flatnonzero((at < starts[owner]) | (at >= ends[owner]))
    if len(outside):
        row = int(outside[0])
        where = f"{starts[owner[row]]} to {ends[owner[row]]}"
        filling = sequence.pool_ids[at[row]]
        yield UnitsInvalid, f"units[{owner[row]}] has the tokens {where}; its pooled row {filling} fills {at[row]}"
    for number, unit in enumerate(head.units):
        branches = sequence.branch_ids[unit.start : unit.end]
        if branches.min() != branches.max():
            yield UnitsInvalid, f"units[{number}] has tokens in the branches {branches.min()} and {branches.max()}"
