"""The pictures of a rendered document, decoded and encoded as a shard stores them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packer_service.ingest.media.isolated import crops
from packer_service.ingest.media.shape import ProbedMedium
from packer_service.packs.crop import Crop
from packer_service.packs.rendered import RenderedDocument
from schemas.config import PackConfig


def decode_crops(
    rendered: RenderedDocument, folder: str, config: PackConfig, *, doc_id: str, first_unit: int
) -> Iterator[Crop]:
    """The crops of a document's units, in their order. Each image or video is decoded once.

    Args:
        rendered: a document, or a piece of one: of a video, only the frames that lie in the piece are decoded.
        folder: URI or path of the folder that holds the row's file.
        config: the job's configuration.
        doc_id: the document's id.
        first_unit: number of its first unit in the pack.

    Raises:
        DocumentError: an image or video is missing, or cannot be decoded.
        OSError: the file system failed; no document is at fault.
    """
    media: Sequence[ProbedMedium] = rendered.media
    numbers, first, unit = rendered.units.numbers, 0, first_unit
    for medium, shape in media:
        own = numbers[(numbers >= first) & (numbers < first + shape.n_units)] - first
        if len(own):
            yield from crops(medium, folder, shape.of_units(own), config, doc_id=doc_id, first_unit=unit)
        first, unit = first + shape.n_units, unit + len(own)
