"""What a pack is built from: its documents, read again and rendered, and their crops, which another thread decodes.

Layouts follow from tokens alone, so they are solved while the decoder works; and while a pack is encoded and written,
the documents of the next one are read and probed. No crop is decoded before the pack in front of it is written, so
there is never more than one pack's pixels in memory. A video that several documents show is decoded for all of them at
once; what later packs show of it waits on the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from threading import Event
from typing import TypeVar

from preshard.packer_service.ingest.background import started
from preshard.packer_service.ingest.decode import wanted_media
from preshard.packer_service.ingest.media.stores import AHEAD, reading_row
from preshard.packer_service.ingest.packed.crops import stored_crops
from preshard.packer_service.ingest.source.file import DATASET
from preshard.packer_service.job.plan import PlannedDocument
from preshard.packer_service.job.read import planned_crops, read_ahead
from preshard.packer_service.job.videos import Rendered, ShardVideos
from preshard.packer_service.packs.crop import Crop
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True, slots=True)
class ReadDocument:
    """A planned document and what became of it: rendered, or lost by an error."""

    planned: PlannedDocument
    rendered: Rendered

    @property
    def n_units(self) -> int:
        return 0 if isinstance(self.rendered, DocumentError) else len(self.rendered.units)


Decoded = list[list[Crop] | DocumentError]
"""For each document its crops, whose units count from 0 in the document, or why it has none."""


def read_documents(
    planned: Sequence[PlannedDocument], config: PackConfig, videos: ShardVideos, ended: Event
) -> list[ReadDocument]:
    """Reads documents again, and renders them; no pixel is decoded.

    Args:
        planned: references to them.
        config: the job's configuration.
        videos: reads them.
        ended: set when nobody waits for the result any more, which then may lack the last documents.

    Raises:
        OSError: the file system failed; no document is at fault.
    """
    if not ended.is_set():
        read_ahead(planned, config)
    wanted = takewhile(lambda _: not ended.is_set(), planned)
    return [ReadDocument(planned=document, rendered=videos.read(document)) for document in wanted]


def decode_documents(
    documents: Sequence[ReadDocument], config: PackConfig, videos: ShardVideos, ended: Event
) -> Decoded:
    """The crops of all documents of a pack.

    Args:
        documents: documents that were read.
        config: the job's configuration.
        videos: those of the shard.
        ended: as of :func:`read_documents`.

    Raises:
        OSError: as there.
    """
    videos.begin((document.planned, document.rendered) for document in documents)
    stored = stored_crops(
        (document.planned.doc_id, document.rendered)
        for document in documents
        if document.planned.file.kind == DATASET and not isinstance(document.rendered, DocumentError)
    )
    if not ended.is_set():
        _expect_images(documents)
    wanted = takewhile(lambda _: not ended.is_set(), documents)
    return [_crops(document, config, videos, stored) for document in wanted]


def _expect_images(documents: Sequence[ReadDocument]) -> None:
    """Says which images are decoded next, so that those in a store are on their way."""
    AHEAD.forget()
    for document in documents:
        if not isinstance(document.rendered, DocumentError) and document.planned.file.kind != DATASET:
            media = (medium for (medium, _), _ in wanted_media(document.rendered))
            AHEAD.expect(media, document.planned.file.media)


def _crops(
    document: ReadDocument, config: PackConfig, videos: ShardVideos, stored: Iterator[list[Crop] | DocumentError]
) -> list[Crop] | DocumentError:
    planned, rendered = document.planned, document.rendered
    if isinstance(rendered, DocumentError):
        return rendered
    if planned.file.kind == DATASET:
        return next(stored)
    if not len(rendered.units):
        return []
    try:
        with reading_row(planned.location):
            return list(planned_crops(planned, rendered, config, first_unit=0, decode=videos.decoder(planned)))
    except DocumentError as error:
        return error


def placed_crops(documents: Sequence[ReadDocument], decoded: Decoded) -> list[Crop]:
    """The crops of a pack's documents, their units counted throughout the pack."""
    placed: list[Crop] = []
    first = 0
    for document, own in zip(documents, decoded, strict=True):
        if not isinstance(own, DocumentError):
            placed += [crop.moved(first) for crop in own] if first else own
            first += document.n_units
    return placed


class Aside:
    """Runs calls beside the thread that asks for them; one whose call nobody waits for any more ends soon."""

    def __init__(self) -> None:
        self.ended = Event()

    def start(self, function: Callable[[], T]) -> Future[T]:
        """The result of a call, as soon as it is there."""
        return started(function, "aside")


@contextmanager
def aside() -> Iterator[Aside]:
    """Calls that end, after the document that they are at, when the block does."""
    running = Aside()
    try:
        yield running
    finally:
        running.ended.set()
