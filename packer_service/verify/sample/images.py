"""The rules of a sample's images: their boundaries between ranks, their places in the tar, their pixels."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise

import numpy as np
from PIL import Image

from preshard.packer_service.verify.independent.formulas import least_largest_load
from preshard.packer_service.verify.sample.bare import find_extra
from preshard.packer_service.verify.tar import Member
from preshard.packer_service.verify.verdict import Finding
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import BoundariesInvalid, BoundariesNotOptimal, ImagesInvalid
from preshard.schemas.header import SampleHead
from preshard.schemas.layout import RankImages
from preshard.schemas.manifest import ModelEntry


def check_boundaries(head: SampleHead, config: PackConfig, model: ModelEntry | None) -> Iterator[Finding]:
    """Checks for each configured CP size that ranks hold consecutive whole units or, where these are shared, crops."""
    sizes = [str(size) for size in sorted(config.cp_sizes)]
    if list(head.image_shard_boundaries) != sizes:
        yield BoundariesInvalid, f"image_shard_boundaries has CP sizes {list(head.image_shard_boundaries)}, not {sizes}"
        return
    rows = dict([(0, 0), *((crops, upto) for crops, upto, _ in list_parts(head, model))])
    for size, ranks in head.image_shard_boundaries.items():
        if list(ranks) != [str(rank) for rank in range(int(size))]:
            yield BoundariesInvalid, f"CP size {size} has ranks {list(ranks)}, not 0 to {int(size) - 1} in order"
        else:
            what = "crop" if model is None or model.shares_crops else "unit"
            yield from _check_ranks(size, list(ranks.values()), rows, what)


def _check_ranks(size: str, ranks: list[RankImages], rows: dict[int, int], what: str) -> Iterator[Finding]:
    largest = max(part["end_pool_idx"] - part["start_pool_idx"] for part in ranks)
    at = 0
    for rank, part in enumerate(ranks):
        name, start, end = f"CP size {size}, rank {rank}:", part["start_image_idx"], part["end_image_idx"]
        if start != at:
            yield BoundariesInvalid, f"{name} start_image_idx is {start}, not {at}, where the rank before it ends"
        if end < start or end not in rows:
            yield BoundariesInvalid, f"{name} end_image_idx is {end}, not the end of a {what} at or after {start}"
        for edge, crop in (("start", start), ("end", end)):
            found = part["start_pool_idx"] if edge == "start" else part["end_pool_idx"]
            if crop in rows and found != rows[crop]:
                yield BoundariesInvalid, f"{name} {edge}_pool_idx is {found}, not {rows[crop]}"
        if part["max_num_tokens"] != largest:
            yield BoundariesInvalid, f"{name} max_num_tokens is {part['max_num_tokens']}, not {largest}"
        at = end
    if at != max(rows):
        yield BoundariesInvalid, f"CP size {size} ends at crop {at}, not at {max(rows)}"


def list_parts(head: SampleHead, model: ModelEntry | None) -> list[tuple[int, int, int]]:
    """Parts that ranks are dealt whole, in stored order: crops and pooled rows up to and including each, and its load.

    A part is a unit, or a single crop where a unit's crops are shared: then each has its part of the rows and the load.
    """
    edges = zip(pairwise([0, *head.cum_image_bounds]), pairwise([0, *head.cum_token_pooling_bounds]), strict=True)
    parts = list[tuple[int, int, int]]()
    for unit, ((first, end), (before, upto)) in zip(head.units, edges, strict=True):
        if model is not None and not model.shares_crops:
            parts.append((end, upto, unit.load))
            continue
        crops, rows = end - first, upto - before
        parts += [(first + n, before + rows * n // crops, unit.load // crops) for n in range(1, crops + 1)]
    return parts


def check_optimal(head: SampleHead, model: ModelEntry | None) -> Iterator[Finding]:
    """The largest load of a rank is the least possible, in stored order and no more than in the order of tokens; and no
    rank is empty while there are enough parts.
    """
    loads = [load for *_, load in list_parts(head, model)]
    units = [head.units[number].load for number in head.token_order]
    for size, ranks in head.image_shard_boundaries.items():
        crops = [part["end_image_idx"] - part["start_image_idx"] for part in ranks.values()]
        largest, least = max(rank_loads(head, size, model)), least_largest_load(loads, len(crops))
        if largest != least:
            yield BoundariesNotOptimal, f"CP size {size}: a rank has the load {largest}; {least} is possible"
        elif least > (in_order := least_largest_load(units, len(crops))):
            what = f"a rank has the load {least}; {in_order} is possible with units in the order of their tokens"
            yield BoundariesNotOptimal, f"CP size {size}: {what}"
        if len(loads) >= len(crops) and not all(crops):
            empty = crops.index(0)
            yield BoundariesNotOptimal, f"CP size {size}: rank {empty} is empty, with {len(loads)} parts to share"


def rank_loads(head: SampleHead, size: str, model: ModelEntry | None) -> list[int]:
    """The encoder's work of each rank of a CP size, whose boundaries must be sound."""
    parts = list_parts(head, model)
    loads = accumulate((load for *_, load in parts), initial=0)
    before = dict(zip([0, *(crops for crops, *_ in parts)], loads, strict=True))
    ranks = head.image_shard_boundaries[size].values()
    return [before[part["end_image_idx"]] - before[part["start_image_idx"]] for part in ranks]


def check_places(
    head: SampleHead,
    members: Sequence[Member],
    config: PackConfig,
    model: ModelEntry | None,
    may_be_cut: Sequence[bool] | None,
) -> Iterator[Finding]:
    """``images`` lists the crops that lie in the tar, with their documents and units, which must be sound.

    ``may_be_cut`` says of each span whether something of its document lies elsewhere; None where that is not known.
    """
    listed, bounds = head.images, np.array(head.cum_image_bounds, np.int64)
    total = int(bounds[-1]) if len(bounds) else 0
    if len(listed) != total or len(members) != total:
        counted = f"{len(listed)} in images, {len(members)} in the tar, {total} by cum_image_bounds"
        yield ImagesInvalid, f"the crops are {counted}"
        return
    units = np.searchsorted(bounds, np.arange(total), side="right")
    side = config.vision.image_size
    for number, (image, member) in enumerate(zip(listed, members, strict=True)):
        unit = int(units[number])
        asked = {
            "doc_id": head.documents[head.units[unit].document].doc_id,
            "unit": unit,
            **({"width": side, "height": side} if model is None else {}),
            "offset": member.offset - members[0].offset,
            "size": len(member.data),
        }
        for name, value in asked.items():
            if getattr(image, name) != value:
                yield ImagesInvalid, f"images[{number}].{name} is {getattr(image, name)!r}, not {value!r}"
    yield from _check_timestamps(head, may_be_cut or [True] * len(head.documents))


def _check_timestamps(head: SampleHead, may_be_cut: Sequence[bool]) -> Iterator[Finding]:
    """Null for a still image; of a document's frames, each is later than the one before it, or begins a clip at 0, as
    the first one of a whole document does.
    """
    before: float | None = None
    bounds, document = [0, *head.cum_image_bounds], -1
    crops = ((unit, number) for unit in head.token_order for number in range(bounds[unit], bounds[unit + 1]))
    for unit, number in crops:
        now, name = head.images[number].timestamp, f"images[{number}].timestamp"
        kind = head.units[unit].kind
        if now is not None and not (math.isfinite(now) and now >= 0):
            yield ImagesInvalid, f"{name} is {now}, neither null nor a time in a clip"
        if (now is None) != (kind == "image"):
            yield ImagesInvalid, f"{name} is {now}, and its unit's kind is {kind}; null is for a still image"
        is_first = document != (document := head.units[unit].document)
        if is_first and now and not any(may_be_cut[document : document + 1]) and not head.documents[document].piece:
            yield ImagesInvalid, f"{name} is {now}, not 0, where the clip of a whole document starts"
        if not is_first and now is not None and before is not None and 0 < now <= before:
            yield ImagesInvalid, f"{name} is {now}, not after {before}, nor 0 at a clip's start"
        before = now


def check_pixels(
    members: Sequence[Member], sizes: Sequence[tuple[int, int] | None], config: PackConfig
) -> Iterator[Finding]:
    """Every crop decodes as an RGB image of the configured format and of its size (None: not known), and is no more."""
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
        extra = find_extra(data, config.image_format)
    except Exception as error:  # a damaged picture can surface as nearly any exception
        return f"does not decode as {kind} ({type(error).__name__}: {error})"
    return f"holds {extra}; a crop is the picture alone" if extra else ""
