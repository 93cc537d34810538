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
from itertools import takewhile
from threading import Event
from typing import TypeVar

from preshard.packer_service.ingest.crops import decode_crops, stored_crops, wanted_media
from preshard.packer_service.ingest.fetch import started
from preshard.packer_service.ingest.media.stores import AHEAD, reading_row
from preshard.packer_service.job.writing.read import ShardDocument, read_ahead
from preshard.packer_service.job.writing.videos import ShardVideos
from preshard.packer_service.packs.crop import Crop
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError

T = TypeVar("T")


def read_documents(documents: Sequence[ShardDocument], config: PackConfig, videos: ShardVideos, ended: Event) -> None:
    """Reads documents again, and renders them; no pixel is decoded.

    Args:
        documents: those of a pack.
        config: the job's configuration.
        videos: reads them.
        ended: set when nobody waits for the result any more; the last documents may be left then.

    Raises:
        OSError: the file system failed; no document is at fault.
    """
    if not ended.is_set():
        read_ahead(documents, config)
    for document in takewhile(lambda _: not ended.is_set(), documents):
        videos.read(document)


def decode_documents(documents: Sequence[ShardDocument], config: PackConfig, videos: ShardVideos, ended: Event) -> None:
    """Gives documents that were read their crops, or the error of one that cannot be decoded.

    Args:
        documents: those of a pack.
        config: the job's configuration.
        videos: those of the shard.
        ended: as of :func:`read_documents`.

    Raises:
        OSError: as there.
    """
    read = [document for document in documents if document.rendered is not None]
    stored = stored_crops((document.row["doc_id"], document.arrays) for document in read if document.is_stored)
    if not ended.is_set():
        _expect_images(read)
    for document in takewhile(lambda _: not ended.is_set(), read):
        try:
            if document.is_stored:
                document.crops = _found(next(stored))
            elif document.n_units:
                document.crops = _decode(document, config, videos)
        except DocumentError as error:
            document.error = error


def _expect_images(documents: Sequence[ShardDocument]) -> None:
    """Says which images are decoded next, so that those in a store are on their way."""
    AHEAD.forget()
    for document in documents:
        if not document.is_stored:
            AHEAD.expect((medium for (medium, _), _ in wanted_media(document.arrays)), document.file.media)


def _found(crops: list[Crop] | DocumentError) -> list[Crop]:
    if isinstance(crops, DocumentError):
        raise crops
    return crops


def _decode(document: ShardDocument, config: PackConfig, videos: ShardVideos) -> list[Crop]:
    with reading_row(document.location):
        return list(
            decode_crops(
                document.arrays,
                document.file.media,
                config,
                doc_id=document.row["doc_id"],
                first_unit=0,
                decode=videos.decoder(document),
            )
        )


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
