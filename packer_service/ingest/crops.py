"""The pictures of a rendered document, decoded and encoded as a shard stores them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from preshard.packer_service.ingest.fetch import Range, read_ranges
from preshard.packer_service.ingest.media.isolated import crops
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.shape import ProbedMedium
from preshard.packer_service.packs.crop import Crop
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError, MemberChanged
from preshard.schemas.header import StoredImage
from preshard.schemas.members import TAR_BLOCK, check_member

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
    decode: Decode = crops,
) -> Iterator[Crop]:
    """The crops of a document's units, in their order. Each image or video is decoded once.

    Args:
        rendered: a document, or a piece of one: of a video, only the frames that lie in the piece are decoded.
        folder: what its media are relative to, and what they may reach.
        config: the job's configuration.
        doc_id: the document's id.
        decode: decodes an image or video.

    Raises:
        DocumentError: an image or video is missing, or cannot be decoded.
        OSError: the file system failed; no document is at fault.
    """
    for (medium, placed), unit in wanted_media(rendered):
        yield from decode(medium, folder, placed, config, doc_id=doc_id, first_unit=unit)


class StoredCrops(NamedTuple):
    """Places of the crops of one unit: the file, the byte from which their offsets count, and each one's row.

    A named tuple, since each unit of a document gets one whenever the document is taken out of its pack.
    """

    shard: str
    crops_at: int
    images: Sequence[StoredImage]


class _Run(NamedTuple):
    """Crops of one document that follow one another in a pack, each with its unit, and the bytes that hold them."""

    range: Range
    crops_at: int
    images: list[tuple[int, StoredImage]]


def stored_crops(documents: Iterable[tuple[str, RenderedDocument]]) -> Iterator[list[Crop] | DocumentError]:
    """The crops of documents, in their order, as ``decode_crops`` gives those of each; its units count from 0.

    The bytes of all documents are read before the first is given, several ranges at the same time.

    Args:
        documents: their ids, and what was taken out of packs, or a part of one; ``media`` holds a :class:`StoredCrops`
            for each unit.

    Returns:
        In place of a document's crops ``decode_failed``, where the bytes are not those that were written, or their file
        is gone.

    Raises:
        OSError: the file system failed; no document is at fault.
    """
    runs = [(doc_id, list(_runs(rendered))) for doc_id, rendered in documents]
    read = read_ranges([run.range for _, own in runs for run in own])[::-1]
    for doc_id, own in runs:
        pairs = [(run, read.pop()) for run in own]  # each document's bytes go once its crops are made
        try:
            yield [crop for run, data in pairs for crop in _crops(run, data, doc_id)]
        except DocumentError as error:
            yield error


def read_crops(stored: StoredCrops) -> list[Crop]:
    """Crops of one pack, whatever their units.

    Raises:
        DocumentError: ``decode_failed``, as :func:`stored_crops` gives it.
        OSError: the file system failed.
    """
    runs = list(_together([stored]))
    pairs = zip(runs, read_ranges([run.range for run in runs]), strict=True)
    return [crop for run, data in pairs for crop in _crops(run, data, "")]


def _runs(rendered: RenderedDocument) -> Iterator[_Run]:
    return _together([rendered.media[number] for number in rendered.units.numbers.tolist()])


def _together(chosen: Sequence[StoredCrops]) -> Iterator[_Run]:
    """Crops of units, in runs of those that lie one behind the other."""
    numbered = [(unit, own, image) for unit, own in enumerate(chosen) for image in own.images]
    run = list[tuple[int, StoredCrops, StoredImage]]()
    for item in numbered:
        if run and not _follows(run[-1], item):
            yield _run(run)
            run = []
        run.append(item)
    if run:
        yield _run(run)


def _follows(before: tuple[int, StoredCrops, StoredImage], item: tuple[int, StoredCrops, StoredImage]) -> bool:
    """Whether a crop lies right behind another."""
    (_, one, image), (_, other, following) = before, item
    end = image.offset + TAR_BLOCK + -(-image.size // TAR_BLOCK) * TAR_BLOCK
    return (one.shard, one.crops_at) == (other.shard, other.crops_at) and following.offset == end


def _run(items: Sequence[tuple[int, StoredCrops, StoredImage]]) -> _Run:
    (_, stored, first), (_, _, last) = items[0], items[-1]
    at, end = stored.crops_at, last.offset + TAR_BLOCK + last.size
    return _Run(Range(stored.shard, at + first.offset, at + end), at, [(unit, image) for unit, _, image in items])


def _crops(run: _Run, data: memoryview | None, doc_id: str) -> Iterator[Crop]:
    if data is None:
        raise DocumentError("decode_failed", "the shard that holds its crops is gone")
    for number, (unit, image) in enumerate(run.images):
        at = run.crops_at + image.offset - run.range.start + TAR_BLOCK
        content = bytes(data[at : at + image.size])
        try:
            check_member(content, image.crc32c, f"crop {number}")
        except MemberChanged as error:
            raise DocumentError("decode_failed", f"its stored crops are damaged: {error}") from None
        yield Crop(
            doc_id=doc_id,
            unit=unit,
            width=image.width,
            height=image.height,
            timestamp=image.timestamp,
            data=content,
            crc32c=image.crc32c,
        )
