"""A sample against its rows of the tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from preshard.packer_service.verify.independent.attention import LayoutLoads
from preshard.packer_service.verify.independent.formulas import least_largest_load, pack_cost
from preshard.packer_service.verify.sample.images import list_parts, rank_loads
from preshard.packer_service.verify.tar import RawSample
from preshard.packer_service.verify.verdict import Finding
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.measures import IMAGE_LOADS, LAYOUT_LOADS, MEASURES
from preshard.schemas.errors import (
    DocumentRowInvalid,
    MeasuresInvalid,
    MemberChanged,
    PackRowInvalid,
    SampleHeadInvalid,
)
from preshard.schemas.header import SampleHead
from preshard.schemas.kept_columns import KEPT_TYPES
from preshard.schemas.layout import TokenLayout
from preshard.schemas.manifest import LayerMasks, ModelEntry
from preshard.schemas.members import HEADER_MEMBERS, crc32c, sample_key
from preshard.schemas.sequence import NOT_POOLED, PADDING_DOC, PackedSequence
from preshard.schemas.tables import DOCUMENTS


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """Values that the manifest and the tables state for a sample. None where the table itself cannot be read.

    ``may_be_cut`` says of each row whether a part of its document may lie behind it: tokens that were lost, or another
    piece. ``independent`` asks for figures that share no code with the writer's.
    """

    pack_id: int
    shard: str
    index_in_shard: int
    pack_row: dict[str, Any] | None
    document_rows: list[dict[str, Any]] | None
    may_be_cut: list[bool] | None
    measure_rows: pa.Table | None
    independent: bool = False


LEFT_OUT: dict[str, object] = {"columns": None, "preference": False}
"""Fields of a span that are left out where they say this."""


def check_spelling(head: SampleHead) -> Iterator[Finding]:
    """No field says what leaving it out says."""
    for number, span in enumerate(head.documents):
        for name, value in LEFT_OUT.items():
            if name in span.model_fields_set and getattr(span, name) == value:
                yield SampleHeadInvalid, f"documents[{number}].{name} is {value!r}, which is said by leaving it out"


def check_cuts(head: SampleHead, may_be_cut: Sequence[bool]) -> Iterator[Finding]:
    """Checks that a span was cut only where more of its document follows, and that a video that goes on is its last."""
    for number, (span, has_more) in enumerate(zip(head.documents, may_be_cut, strict=False)):
        for name in ("label_cut", "medium_cut"):
            if getattr(span, name) and not has_more:
                why = "no token was lost behind it, and no other piece follows"
                yield SampleHeadInvalid, f"documents[{number}].{name} is true, and {why}"
        kinds = {head.units[unit].document: head.units[unit].kind for unit in head.token_order}
        if span.medium_cut and kinds.get(number, "image") == "image":
            yield SampleHeadInvalid, f"documents[{number}].medium_cut is true, and its last unit is of no video"


def check_places(head: SampleHead, config: PackConfig) -> Iterator[Finding]:
    """Epochs and copies are as many as the configuration takes."""
    weights = dict(config.mixture)
    for number, span in enumerate(head.documents):
        most = {"epoch": config.epochs, "copy_number": math.ceil(weights.get(span.source, 1))}
        for name, end in most.items():
            if getattr(span, name) >= end:
                of = "epochs" if name == "epoch" else "the weight of its source"
                found = getattr(span, name)
                yield DocumentRowInvalid, f"documents[{number}].{name} is {found}, not below {end}, by {of}"


def check_document_rows(
    head: SampleHead, rows: list[dict[str, Any]], keep_columns: Mapping[str, str]
) -> Iterator[Finding]:
    """``documents.parquet`` says of this pack what KEY.json says."""
    if len(rows) != len(head.documents):
        yield DocumentRowInvalid, f"documents.parquet has {len(rows)} rows of this pack, not {len(head.documents)}"
    for number, (row, span) in enumerate(zip(rows, head.documents, strict=False)):
        kept, where = span.columns or {}, f"documents[{number}].columns"
        if {name: KEPT_TYPES[kind] for name, kind in keep_columns.items()} != {
            name: KEPT_TYPES[keep_columns[name]] if value is None and name in keep_columns else type(value)
            for name, value in kept.items()
        }:
            yield SampleHeadInvalid, f"{where} is {kept}; the configuration keeps {dict(keep_columns)}"
            continue
        for name, value in (span.model_dump(include=set(DOCUMENTS.names)) | kept).items():
            if row[name] != value:
                yield (
                    DocumentRowInvalid,
                    f"documents.parquet has {name} {row[name]!r} for documents[{number}], not {value!r}",
                )


def check_checksums(raw: RawSample, head: SampleHead, expected: Expected) -> Iterator[Finding]:
    """Every member has the checksum that KEY.json gives, and KEY.json the one that ``packs.parquet`` gives."""
    stored: list[int | None] = [None if expected.pack_row is None else expected.pack_row["head_crc32c"]]
    if list(head.crc32c) != list(HEADER_MEMBERS[1:]):
        yield SampleHeadInvalid, f"crc32c has {list(head.crc32c)}, not {list(HEADER_MEMBERS[1:])}"
    stored += [head.crc32c.get(extension) for extension in HEADER_MEMBERS[1:]]
    stored += [image.crc32c for image in head.images]
    for member, asked in zip(raw.members, stored, strict=False):
        found = crc32c(member.data)
        if asked is not None and found != asked:
            yield MemberChanged, f"{member.name} has the CRC-32C {found}, not {asked}"


def check_pack_row(
    raw: RawSample,
    head: SampleHead,
    sequence: PackedSequence,
    whole: tuple[int, int],
    expected: Expected,
    config: PackConfig,
    layers: LayerMasks | None,
) -> Iterator[Finding]:
    """``packs.parquet`` says of this pack what its bytes say. ``whole`` is the mask's allowed pairs and tiles."""
    assert expected.pack_row is not None
    area, tiles = whole
    crops = raw.members[len(HEADER_MEMBERS) :]
    first_crop = crops[0].offset if crops else raw.end
    n_images = head.cum_image_bounds[-1] if head.cum_image_bounds else 0
    load = sum(unit.load for unit in head.units)
    derived = {
        "pack_id": expected.pack_id,
        "key": sample_key(expected.pack_id),
        "shard": expected.shard,
        "index_in_shard": expected.index_in_shard,
        "offset": raw.offset,
        "header_size": first_crop - raw.offset,
        "size": raw.end - raw.offset,
        "n_tokens": int((sequence.doc_ids != PADDING_DOC).sum()),
        "n_padding": int((sequence.doc_ids == PADDING_DOC).sum()),
        "n_documents": len(head.documents),
        "n_units": len(head.units),
        "n_images": n_images,
        "n_patches": sum(unit.patches for unit in head.units),
        "n_pooled_tokens": int((sequence.pool_ids != NOT_POOLED).sum()),
        "load": load,
        "attention_area": area,
        "attention_tiles": tiles,
        "cost": pack_cost(
            config, lengths=[span.length for span in head.documents], area=area, load=load, layers=layers
        ),
    }
    for name, found in expected.pack_row.items():
        if name != "head_crc32c" and found != derived[name]:
            yield PackRowInvalid, f"packs.parquet has {name} {found!r}, not {derived[name]!r}"


class WindowLoads(NamedTuple):
    """Work that layouts give ranks under the mask of layers with a window, the mask's tiles, and the layers."""

    loads: Mapping[str, LayoutLoads]
    tiles: int
    layers: LayerMasks


def check_measures(
    expected: Expected,
    layouts: Sequence[TokenLayout],
    loads: Mapping[str, LayoutLoads],
    head: SampleHead,
    model: ModelEntry | None,
    tiles: int,
    window: WindowLoads | None = None,
) -> Iterator[Finding]:
    """``measures.parquet`` has what follows from the mask, the layouts and the boundaries.

    Args:
        expected: its rows of this pack.
        layouts: the token layouts, in their order.
        loads: what they give ranks to do.
        head: the boundaries and the units.
        model: for which the dataset was packed.
        tiles: tiles of the mask in natural order.
        window: of layers with a sliding window, if the model has any.
    """
    if expected.measure_rows is None:
        return
    found = expected.measure_rows.to_pylist()
    asked = [
        dict.fromkeys(MEASURES.names) | {"pack_id": expected.pack_id} | row
        for row in (*_layout_rows(layouts, loads, tiles, window), *_image_rows(head, model))
    ]
    if len(found) != len(asked):
        yield MeasuresInvalid, f"measures.parquet has {len(found)} rows of this pack, not {len(asked)}"
    wrong = [
        f"{name} {row[name]!r:.200}, not {value!r:.200} ({other['scheme'] or 'images'}, degree {other['degree']})"
        for row, other in zip(found, asked, strict=False)
        if row != other
        for name, value in other.items()
        if row[name] != value
    ]
    if wrong:
        others = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        yield MeasuresInvalid, f"measures.parquet has {wrong[0]}{others}"


def _layout_rows(
    layouts: Sequence[TokenLayout], loads: Mapping[str, LayoutLoads], tiles: int, window: WindowLoads | None
) -> Iterator[dict[str, object]]:
    for layout in layouts:
        degree = layout.ring_degree
        row = _loads_row(loads[layout.name], tiles)
        if window is not None:
            own, layers = _loads_row(window.loads[layout.name], window.tiles), window.layers
            row |= {f"window_{name}": value for name, value in own.items()}
            for of in ("attention_tiles", "gather_path", "ring_path"):
                row[f"layers_{of.removeprefix('attention_')}"] = (
                    layers.full_layers * row[of] + layers.window_layers * own[of]
                )
        tokens = int(layout.runs[:, 2].sum())
        yield {"scheme": layout.scheme, "degree": degree, "possible_keys": tokens * (degree - 1)} | row


def _loads_row(of: LayoutLoads, tiles: int) -> dict[str, Any]:
    return {
        "attention_tiles": tiles,
        "gather_path": max(of.tiles),
        "ring_path": sum(of.ring_steps),
        "sum_attention": sum(of.attention),
        "most_attention": max(of.attention),
        "sum_tiles": sum(of.tiles),
        "sum_keys": sum(of.keys_fetched),
        "most_keys": max(of.keys_fetched),
        **{name: getattr(of, name) for name in LAYOUT_LOADS},
    }


def _image_rows(head: SampleHead, model: ModelEntry | None) -> Iterator[dict[str, object]]:
    loads = [load for *_, load in list_parts(head, model)]
    for size, ranks in head.image_shard_boundaries.items():
        parts = [ranks[str(rank)] for rank in range(int(size))]
        crops = [part["end_image_idx"] - part["start_image_idx"] for part in parts]
        pooled = [part["end_pool_idx"] - part["start_pool_idx"] for part in parts]
        row: dict[str, object] = {"scheme": None, "degree": int(size)}
        for name, of_rank in zip(IMAGE_LOADS, (crops, pooled, rank_loads(head, size, model)), strict=True):
            row |= {name: of_rank, f"sum_{name}": sum(of_rank), f"most_{name}": max(of_rank)}
        yield row | {"least_image_load": least_largest_load(loads, len(parts))}
