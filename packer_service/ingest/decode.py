"""The pictures of a rendered document, decoded and encoded as a shard stores them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from preshard.packer_service.ingest.media.isolated import crops
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.shape import ProbedMedium
from preshard.packer_service.packs.crop import Crop
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.schemas.config import PackConfig

Decode = Callable[..., list[Crop]]
"""Gives the crops of an image or video as :func:`preshard.packer_service.ingest.media.isolated.crops` does."""


def wanted_media(rendered: RenderedDocument) -> Iterator[tuple[ProbedMedium, int]]:
    """The images and videos of a document, or of a piece of one, with those of their units that lie in it.

    Yields:
        An image or video of which units lie there, and the number of the first of them among all in the piece.
    """
    media: Sequence[ProbedMedium] = rendered.media
    numbers, first, unit = rendered.units.numbers, 0, 0
    for medium, placed in media:
        own = numbers[(numbers >= first) & (numbers < first + placed.n_units)] - first
        if len(own):
            yield (medium, placed.of_units(own)), unit
        first, unit = first + placed.n_units, unit + len(own)


def decode_crops(
    rendered: RenderedDocument,
    folder: MediaReach,
    config: PackConfig,
    *,
    doc_id: str,
    first_unit: int,
    decode: Decode = crops,
) -> Iterator[Crop]:
    """The crops of a document's units, in their order. Each image or video is decoded once.

    Args:
        rendered: a document, or a piece of one: of a video, only the frames that lie in the piece are decoded.
        folder: what its media are relative to, and what they may reach.
        config: the job's configuration.
        doc_id: the document's id.
        first_unit: number of its first unit in the pack.
        decode: decodes an image or video.

    Raises:
        DocumentError: an image or video is missing, or cannot be decoded.
        OSError: the file system failed; no document is at fault.
    """
    for (medium, placed), unit in wanted_media(rendered):
        yield from decode(medium, folder, placed, config, doc_id=doc_id, first_unit=first_unit + unit)
