"""A pack as the members of its sample: what its header part says of it, its arrays, and its crops, as tar bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter

from preshard.packer_service.packs.crop import Crop
from preshard.packer_service.packs.pack import BuiltPack
from preshard.schemas.encode import encode_json, encode_layouts, encode_sequence, tar_member, tar_parts
from preshard.schemas.header import DocumentSpan, SampleHead, StoredImage, Unit
from preshard.schemas.layout import TokenLayout
from preshard.schemas.manifest import UNIT_KINDS
from preshard.schemas.members import HEAD, LAYOUTS, SEQUENCE, crc32c, image_member, sample_key
from preshard.schemas.sequence import PackedSequence

_IMAGES = TypeAdapter(list[StoredImage])
_UNITS = TypeAdapter(list[Unit])
"""Make all crops and units of a pack in half of the time that one after the other takes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedSample:
    """A sample's members as tar bytes: the header part (head, sequence, layouts), and the crops one after the other."""

    header: bytes
    crops: list[bytes]
    head_crc32c: int


def make_head(pack_id: int, spans: list[DocumentSpan], pack: BuiltPack) -> SampleHead:
    """Contents of ``KEY.json``, but for the crops' places and the checksums, which follow from the encoded members."""
    return SampleHead(
        pack_id=pack_id,
        crc32c={},
        documents=spans,
        units=_units(pack),
        cum_image_bounds=pack.cum_image_bounds.tolist(),
        cum_token_pooling_bounds=pack.cum_token_pooling_bounds.tolist(),
        image_shard_boundaries=pack.boundaries,
        images=[],
    )


def _units(pack: BuiltPack) -> list[Unit]:
    units = pack.units
    columns = (pack.unit_documents, units.media, units.kinds, units.edges, units.grids, units.patches, units.rows,
               units.loads, units.time_steps)  # fmt: skip
    found = [
        {
            "document": document,
            "medium": medium,
            "kind": UNIT_KINDS[kind],
            "start": start,
            "end": end,
            "grid": grid,
            "patches": patches,
            "rows": rows,
            "load": load,
            "time_step": time_step,
        }
        for document, medium, kind, (start, end), grid, patches, rows, load, time_step in zip(
            *(column.tolist() for column in columns), strict=True
        )
    ]
    return _UNITS.validate_python(found)


def encode_sample(
    head: SampleHead,
    sequence: PackedSequence,
    layouts: Sequence[TokenLayout],
    crops: Sequence[Crop],
    image_format: str,
    encoded: Mapping[str, bytes] | None = None,
) -> EncodedSample:
    """Encodes a sample's members.

    Args:
        head: what its head says, without ``images`` and ``crc32c``, which are filled in.
        sequence: its arrays.
        layouts: its layouts.
        crops: its pictures, whose units count throughout the pack.
        image_format: of the pictures.
        encoded: members, by their extensions, that are known as bytes already.
    """
    key, known = sample_key(head.pack_id), encoded or {}
    images, parts, offset = list[dict[str, object]](), list[bytes](), 0
    for number, crop in enumerate(crops):
        member = tar_parts(image_member(key, number, image_format), crop.data)
        parts += member
        images.append(
            {
                "doc_id": crop.doc_id,
                "unit": crop.unit,
                "width": crop.width,
                "height": crop.height,
                "timestamp": crop.timestamp,
                "offset": offset,
                "size": len(crop.data),
                "crc32c": crc32c(crop.data) if crop.crc32c is None else crop.crc32c,
            }
        )
        offset += sum(map(len, member))
    arrays = {
        SEQUENCE: known.get(SEQUENCE) or encode_sequence(sequence),
        LAYOUTS: known.get(LAYOUTS) or encode_layouts(list(layouts)),
    }
    checksums = {extension: crc32c(data) for extension, data in arrays.items()}
    content = encode_json(head.model_copy(update={"images": _IMAGES.validate_python(images), "crc32c": checksums}))
    members = {HEAD: content, **arrays}
    header = b"".join(tar_member(f"{key}.{extension}", data) for extension, data in members.items())
    return EncodedSample(header=header, crops=parts, head_crc32c=crc32c(content))
