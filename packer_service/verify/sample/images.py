"""The rules of a sample's images: their boundaries between ranks, their places in the tar, their pixels."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from itertools import accumulate

import numpy as np
from PIL import Image

from preshard.packer_service.verify.independent.layouts import least_largest_load
from preshard.packer_service.verify.sample.units import unit_documents
from preshard.packer_service.verify.tar import Member
from preshard.packer_service.verify.verdict import Finding
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import BoundariesInvalid, BoundariesNotOptimal, ImagesInvalid
from preshard.schemas.layout import RankImages
from preshard.schemas.manifest import ModelEntry, SampleHead


def check_boundaries(head: SampleHead, config: PackConfig) -> Iterator[Finding]:
    """For every configured CP size, ranks in order hold consecutive whole units, and all of them."""
    sizes = [str(size) for size in sorted(config.cp_sizes)]
    if list(head.image_shard_boundaries) != sizes:
        yield BoundariesInvalid, f"image_shard_boundaries has CP sizes {list(head.image_shard_boundaries)}, not {sizes}"
        return
    rows = dict(zip([0, *head.cum_image_bounds], [0, *head.cum_token_pooling_bounds], strict=True))
    for size, ranks in head.image_shard_boundaries.items():
        if list(ranks) != [str(rank) for rank in range(int(size))]:
            yield BoundariesInvalid, f"CP size {size} has ranks {list(ranks)}, not 0 to {int(size) - 1} in order"
        else:
            yield from _check_ranks(size, list(ranks.values()), rows)


def _check_ranks(size: str, ranks: list[RankImages], rows: dict[int, int]) -> Iterator[Finding]:
    largest = max(part["end_pool_idx"] - part["start_pool_idx"] for part in ranks)
    at = 0
    for rank, part in enumerate(ranks):
        name, start, end = f"CP size {size}, rank {rank}:", part["start_image_idx"], part["end_image_idx"]
        if start != at:
            yield BoundariesInvalid, f"{name} start_image_idx is {start}, not {at}, where the rank before it ends"
        if end < start or end not in rows:
            yield BoundariesInvalid, f"{name} end_image_idx is {end}, not the end of a unit at or after {start}"
        for edge, crop in (("start", start), ("end", end)):
            found = part["start_pool_idx"] if edge == "start" else part["end_pool_idx"]
            if crop in rows and found != rows[crop]:
                yield BoundariesInvalid, f"{name} {edge}_pool_idx is {found}, not {rows[crop]}"
        if part["max_num_tokens"] != largest:
            yield BoundariesInvalid, f"{name} max_num_tokens is {part['max_num_tokens']}, not {largest}"
        at = end
    if at != max(rows):
        yield BoundariesInvalid, f"CP size {size} ends at crop {at}, not at {max(rows)}"


def check_optimal(head: SampleHead) -> Iterator[Finding]:
    """The largest load of a rank is the least possible, and no rank is empty while there are enough units."""
    loads = [unit.load for unit in head.units]
    for size, ranks in head.image_shard_boundaries.items():
        crops = [part["end_image_idx"] - part["start_image_idx"] for part in ranks.values()]
        largest, least = max(rank_loads(head, size)), least_largest_load(loads, len(crops))
        if largest != least:
            yield BoundariesNotOptimal, f"CP size {size}: a rank has the load {largest}; {least} is possible"
        if len(loads) >= len(crops) and not all(crops):
            empty = crops.index(0)
            yield BoundariesNotOptimal, f"CP size {size}: rank {empty} is empty, with {len(loads)} units to share"


def rank_loads(head: SampleHead, size: str) -> list[int]:
    """The encoder's work of each rank of a CP size, whose boundaries must be sound."""
    before = dict(zip([0, *head.cum_image_bounds], accumulate((u.load for u in head.units), initial=0), strict=True))
    ranks = head.image_shard_boundaries[size].values()
    return [before[part["end_image_idx"]] - before[part["start_image_idx"]] for part in ranks]


def check_places(
    head: SampleHead, members: Sequence[Member], config: PackConfig, model: ModelEntry | None
) -> Iterator[Finding]:
    """``images`` lists the crops that lie in the tar, with their documents and units, which must be sound."""
    listed, bounds = head.images, np.array(head.cum_image_bounds, np.int64)
    total = int(bounds[-1]) if len(bounds) else 0
    if len(listed) != total or len(members) != total:
        counted = f"{len(listed)} in images, {len(members)} in the tar, {total} by cum_image_bounds"
        yield ImagesInvalid, f"the crops are {counted}"
        return
    units = np.searchsorted(bounds, np.arange(total), side="right")
    owners, side = unit_documents(head), config.vision.image_size
    for number, (image, member) in enumerate(zip(listed, members, strict=True)):
        unit = int(units[number])
        asked = {
            "doc_id": head.documents[owners[unit]].doc_id,
            "unit": unit,
            **({"width": side, "height": side} if model is None else {}),
            "offset": member.offset - members[0].offset,
            "size": len(member.data),
        }
        for name, value in asked.items():
            if getattr(image, name) != value:
                yield ImagesInvalid, f"images[{number}].{name} is {getattr(image, name)!r}, not {value!r}"
    yield from _check_timestamps(head, owners[units] if total else units)


def _check_timestamps(head: SampleHead, documents: np.ndarray) -> Iterator[Finding]:
    """Null for a still image; of a document's frames, each is later than the one before it, or begins a clip at 0."""
    before: float | None = None
    for number, image in enumerate(head.images):
        now, name = image.timestamp, f"images[{number}].timestamp"
        kind = head.units[image.unit].kind if image.unit < len(head.units) else "image"
        if now is not None and not (math.isfinite(now) and now >= 0):
            yield ImagesInvalid, f"{name} is {now}, neither null nor a time in a clip"
        if (now is None) != (kind == "image"):
            yield ImagesInvalid, f"{name} is {now}, and its unit's kind is {kind}; null is for a still image"
        if number and documents[number] != documents[number - 1]:
            before = None
        if now is not None and before is not None and 0 < now <= before:
            yield ImagesInvalid, f"{name} is {now}, not after {before}, nor 0 at a clip's start"
        before = now


def check_pixels(
    members: Sequence[Member], sizes: Sequence[tuple[int, int] | None], config: PackConfig
) -> Iterator[Finding]:
    """Every crop decodes as an RGB image of the configured format and of its size; None where that is not known."""
    for member, size in zip(members, sizes, strict=True):
        if wrong := _wrong_pixels(member.data, size, config):
            yield ImagesInvalid, f"{member.name}: {wrong}"


def _wrong_pixels(data: bytes, size: tuple[int, int] | None, config: PackConfig) -> str:
    kind = config.image_format.upper()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with Image.open(io.BytesIO(data), formats=[kind]) as image:
                wide, high = size or image.size
                if image.size != (wide, high) or image.mode != "RGB":
                    return f"is {image.mode} of {image.size[0]} x {image.size[1]}, not RGB of {wide} x {high}"
                # At an eighth, a JPEG decoder still reads every byte of its entropy code, which is where damage shows.
                image.draft("RGB", (1, 1))
                image.load()
    except Exception as error:  # a damaged picture can surface as nearly any exception
        return f"does not decode as {kind} ({type(error).__name__}: {error})"
    return ""
