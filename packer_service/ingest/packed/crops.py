"""The crops of a document that was taken out of a pack: bytes, checked and copied as they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import NamedTuple

from packer_service.ingest.packed.bytes import read_range
from packer_service.packs.crop import Crop
from packer_service.packs.rendered import RenderedDocument
from schemas.checksum import check_member
from schemas.codec import TAR_BLOCK
from schemas.errors import DocumentError, MemberChanged
from schemas.manifest import StoredImage


class StoredCrops(NamedTuple):
    """Where the crops of one unit lie: the file, the byte from which their offsets count, and each one's row.

    A named tuple, since each unit of a document gets one whenever the document is taken out of its pack.
    """

    shard: str
    crops_at: int
    images: Sequence[StoredImage]


def stored_crops(rendered: RenderedDocument, *, doc_id: str, first_unit: int) -> Iterator[Crop]:
    """The crops of a document's units, in their order, as ``decode_crops`` gives them.

    Args:
        rendered: a document out of a pack, or a part of one; ``media`` holds a :class:`StoredCrops` for each unit.
        doc_id: the document's id.
        first_unit: number of its first unit in the new pack.

    Raises:
        DocumentError: ``decode_failed``: the bytes are not those that were written, or their file is gone.
        OSError: the file system failed; no document is at fault.
    """
    chosen: Sequence[StoredCrops] = [rendered.media[number] for number in rendered.units.numbers.tolist()]
    numbered = [(unit, own, image) for unit, own in enumerate(chosen) for image in own.images]
    for (shard, crops_at), group in groupby(numbered, key=lambda item: (item[1].shard, item[1].crops_at)):
        together = [(unit, image) for unit, _, image in group]
        yield from _crops_of_pack(shard, crops_at, together, doc_id, first_unit)


def _crops_of_pack(
    shard: str, crops_at: int, images: Sequence[tuple[int, StoredImage]], doc_id: str, first_unit: int
) -> Iterator[Crop]:
    """Reads consecutive crops of a pack by one range."""
    first, last = images[0][1], images[-1][1]
    try:
        data = read_range(shard, crops_at + first.offset, last.offset + TAR_BLOCK + last.size - first.offset)
    except FileNotFoundError:
        raise DocumentError("decode_failed", "the shard that holds its crops is gone") from None
    for number, (unit, image) in enumerate(images):
        at = image.offset - first.offset + TAR_BLOCK
        content = data[at : at + image.size]
        try:
            check_member(content, image.crc32c, f"crop {number}")
        except MemberChanged as error:
            raise DocumentError("decode_failed", f"its stored crops are damaged: {error}") from None
        yield Crop(
            doc_id=doc_id,
            unit=first_unit + unit,
            width=image.width,
            height=image.height,
            timestamp=image.timestamp,
            data=content,
            crc32c=image.crc32c,
        )
