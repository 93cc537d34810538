"""The rules of a unit of a model: its grid, patches and load follow from its crops and the encoder's dimensions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from preshard.packer_service.verify.independent.cost import unit_work
from preshard.packer_service.verify.tiled import check_tiled
from preshard.packer_service.verify.verdict import Finding
from preshard.schemas.config import PackConfig
from preshard.schemas.encoder import VisionEncoder, encoder_of, tokens_per_second
from preshard.schemas.errors import UnitsInvalid
from preshard.schemas.manifest import ModelEntry, SampleHead, StoredImage, Unit


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
            yield from _differing(number, unit, _encoded(unit, own, encoder, model))
            if model.axes == 1:
                tile = (own[0].height // encoder.patch_size[0], own[0].width // encoder.patch_size[1])
                yield from check_tiled(number, unit, len(own), tile, encoder, model)
    yield from _check_time_steps(head, crops, encoder, config, model)


def _differing(number: int, unit: Unit, asked: dict[str, Any]) -> Iterator[Finding]:
    for name, value in asked.items():
        if getattr(unit, name) != value:
            yield UnitsInvalid, f"units[{number}].{name} is {getattr(unit, name)}, not {value}"


def _encoded(
    unit: Unit, crops: Sequence[StoredImage], encoder: VisionEncoder, model: ModelEntry
) -> dict[str, list[int] | int]:
    """What the encoder makes of crops of one size: those that share patches are one sequence, others one each."""
    tall, wide = crops[0].height // encoder.patch_size[0], crops[0].width // encoder.patch_size[1]
    sequences = -(-len(crops) // encoder.temporal_patch_size)
    asked: dict[str, list[int] | int] = {
        "patches": sequences * tall * wide,
        "load": unit_work(encoder, [(tall, wide)] * sequences, unit.rows),
    }
    return asked | ({"grid": [sequences, tall, wide]} if model.axes == 3 else {})


def _check_time_steps(
    head: SampleHead,
    crops: Sequence[Sequence[StoredImage]],
    encoder: VisionEncoder,
    config: PackConfig,
    model: ModelEntry,
) -> Iterator[Finding]:
    """All units of an image or video have the step of their times, or of the whole where only a part is here."""
    for _, group in groupby(enumerate(head.units), key=lambda each: (each[1].document, each[1].medium)):
        numbers, units = zip(*group, strict=True)
        times = [image.timestamp for number in numbers for image in crops[number]]
        if units[0].kind != "image" and None in times:
            continue  # the rule of images names it
        if _follows_time(units[0], model) and _may_be_a_part(head, units, config):
            asked = units[0].time_step
        else:
            asked = _time_step(units[0], [time or 0.0 for time in times], encoder, model)
        for number, unit in zip(numbers, units, strict=True):
            yield from _differing(number, unit, {"time_step": asked})


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
