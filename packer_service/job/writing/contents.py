"""Contents of a shard, from which its packs are built: its documents, read again and rendered, and their crops.

Layouts follow from tokens alone, so they are solved while another thread decodes; and while a pack is encoded and
written, the documents of the next one are read and probed. No crop is decoded before the pack in front of it is
written, so there is never more than one pack's pixels in memory.

Videos that a shard shows more than once are each decoded in one pass, however their clips lie among the packs. When the
first clip of such a video is wanted, the documents of later packs that show it are read ahead, and all of their
pictures are decoded together. What is not wanted yet waits as encoded crops in a nameless file in the folder for
temporary files, so that no pack's crops are in memory before its turn, and nothing is left behind by a kill. The bytes
are those that each clip alone would give; where a pass fails, clips are decoded alone, so that a broken place rejects
only the documents that show it.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import dropwhile, takewhile
from os import SEEK_END
from threading import Event
from typing import IO

from preshard.packer_service.ingest.crops import decode_crops, stored_crops, wanted_media
from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media import isolated
from preshard.packer_service.ingest.media.crops import Picture, ShownPicture, shown_pictures
from preshard.packer_service.ingest.media.reach import MediaReach, is_absolute
from preshard.packer_service.ingest.media.shape import PlacedMedium, ProbedMedium
from preshard.packer_service.ingest.media.stores import AHEAD, reading_row
from preshard.packer_service.job.writing.read import ShardDocument, named_media, read_ahead, read_document
from preshard.packer_service.packs.crop import Crop
from preshard.packer_service.runtime.workers import CallFailedError
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError

AHEAD_TOKENS = 2**20
"""Most tokens of documents that are read ahead: at some 40 bytes per token, 40 MiB, and more than most shards have."""

AHEAD_PIXELS = 2**30
"""Most pixels that wait for later packs, of one video: some 250 MB as JPEG, and more than most shards have."""

VideoName = tuple[str, str]
"""Name of a video: the folder that its URI is relative to, and the URI."""

Shows = dict[VideoName, dict[ShardDocument, None]]
"""Documents that show each video that is shown more than once, in the shard's order."""


class ShardContents:
    """Reads the documents of a shard and decodes their media, one pack after the other. For one thread at a time.

    Args:
        packs: the documents of each pack; those that are rendered already are not read again.
        config: the job's configuration.
        ended: set when nobody waits for a result any more: calls end after the document that they are at.
    """

    def __init__(self, packs: Sequence[Sequence[ShardDocument]], config: PackConfig, ended: Event) -> None:
        self._documents = [document for pack in packs for document in pack if not document.is_stored]
        self._config, self._ended = config, ended
        self._ahead = {document for document in self._documents if document.rendered is not None}
        """Documents of later packs that have been read."""
        self._shows: Shows | None = None
        self._waiting: dict[VideoName, _WaitingPictures] = {}

    def read(self, documents: Sequence[ShardDocument]) -> None:
        """Reads the documents of a pack again, and renders them, unless that was done ahead; no pixel is decoded.

        Raises:
            OSError: the file system failed; no document is at fault.
        """
        if not self._ended.is_set():
            read_ahead(documents, self._config)
        for document in self._awaited(documents):
            if document in self._ahead:
                self._ahead.remove(document)
            else:
                read_document(document, self._config)

    def decode(self, documents: Sequence[ShardDocument]) -> None:
        """Gives those documents of a pack that were read their crops, or the error of one that cannot be decoded.

        Raises:
            OSError: as of :meth:`read`.
        """
        read = [document for document in documents if document.rendered is not None]
        stored = stored_crops((document.row["doc_id"], document.arrays) for document in read if document.is_stored)
        if not self._ended.is_set():
            _expect_images(read)
        for document in self._awaited(read):
            try:
                if document.is_stored:
                    document.crops = _found(next(stored))
                elif document.n_units:
                    document.crops = self._decode(document)
            except DocumentError as error:
                document.error = error

    def _awaited(self, documents: Sequence[ShardDocument]) -> Iterator[ShardDocument]:
        return takewhile(lambda _: not self._ended.is_set(), documents)

    def _decode(self, document: ShardDocument) -> list[Crop]:
        doc_id, decode = document.row["doc_id"], partial(self._crops, document)
        with reading_row(document.location):
            media = document.file.media
            return list(decode_crops(document.arrays, media, self._config, doc_id=doc_id, decode=decode))

    def _crops(
        self,
        document: ShardDocument,
        medium: Medium,
        base: MediaReach,
        placed: PlacedMedium,
        config: PackConfig,
        *,
        doc_id: str,
        first_unit: int,
    ) -> list[Crop]:
        name = _name(medium, base)
        if name is not None and document in self._shared().get(name, ()):
            shown = shown_pictures(placed)
            waiting = self._pictures(name, document, medium, base, {one.picture for one in shown})
            found = waiting.take(shown)
            if not waiting.n_uses:
                self._waiting.pop(name).close()
            if found is not None:
                return [_crop(one, data, doc_id, first_unit) for one, data in zip(shown, found, strict=True)]
        return isolated.crops(medium, base, placed, config, doc_id=doc_id, first_unit=first_unit)

    def _shared(self) -> Shows:
        """The first video sends for the shard's rows, which is little beside decoding it; texts are not read twice."""
        if self._shows is None:
            shows: Shows = {}
            times = Counter[VideoName]()
            for document in self._documents:
                media = () if self._ended.is_set() else named_media(document, self._config)
                names = [name for medium in media if (name := _name(medium, document.file.media)) is not None]
                times.update(names)
                for name in dict.fromkeys(names):
                    shows.setdefault(name, {})[document] = None
            self._shows = {name: documents for name, documents in shows.items() if times[name] > 1}
        return self._shows

    def _pictures(
        self, name: VideoName, document: ShardDocument, medium: Medium, base: MediaReach, own: set[Picture]
    ) -> _WaitingPictures:
        """The pictures of a video, of this document and of as many later ones as there is room for."""
        waiting = self._waiting.get(name)
        if waiting is not None and own <= waiting.asked:
            return waiting
        if waiting is not None:
            waiting.close()
        waiting = self._waiting[name] = self._asked(name, document)
        with suppress(DocumentError):  # what came before it is sound, and the rest is decoded alone
            isolated.pictures(partial(waiting.keep, self._ended), medium, base, waiting.asked, self._config)
        return waiting

    def _asked(self, name: VideoName, document: ShardDocument) -> _WaitingPictures:
        asked, n_uses, pixels = set[Picture](), 0, 0
        for later in dropwhile(lambda each: each is not document, self._shared()[name]):
            if not self._is_read(later):
                break
            uses = [shown_pictures(placed) for placed in _placed(later, name)]
            new = {one.picture for use in uses for one in use} - asked
            pixels += sum(picture.size[0] * picture.size[1] for picture in new)
            if asked and pixels > AHEAD_PIXELS:
                break
            asked |= new
            n_uses += len(uses)
        return _WaitingPictures(asked, n_uses)

    def _is_read(self, document: ShardDocument) -> bool:
        """Whether a document of this pack or a later one has been read, or is now; not where too many wait already."""
        if document.rendered is not None or document.error is not None:
            return True
        if sum(each.n_tokens for each in self._ahead) >= AHEAD_TOKENS:
            return False
        read_document(document, self._config)
        self._ahead.add(document)
        return True


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


class _WaitingPictures:
    """Encoded pictures of a video that wait in a file until ``n_uses`` clips have taken theirs."""

    def __init__(self, asked: Collection[Picture], n_uses: int) -> None:
        self.asked = frozenset(asked)
        self.n_uses = n_uses
        self._places: dict[Picture, tuple[int, int]] = {}
        self._file: IO[bytes] | None = None

    def keep(self, ended: Event, pictures: Iterator[tuple[Picture, bytes]]) -> None:
        """Takes pictures as they come, until the disk is full or nobody waits any more; from the beginning again."""
        self._places.clear()
        with suppress(OSError):
            self._file = self._file or tempfile.TemporaryFile()  # noqa: SIM115  # closed when all are taken
        try:
            for picture, data in pictures:
                if ended.is_set() or not self._add(picture, data):
                    return
        except CallFailedError:  # what it gave before it broke is not trusted
            self._places.clear()
            raise

    def _add(self, picture: Picture, data: bytes) -> bool:
        """Whether there is room for it."""
        if self._file is None:
            return False
        try:
            place = self._file.seek(0, SEEK_END)
            self._file.write(data)
            self._file.flush()
        except OSError:
            return False
        self._places[picture] = place, len(data)
        return True

    def take(self, shown: Sequence[ShownPicture]) -> list[bytes] | None:
        """The pictures of a clip, or None if one of them is not there."""
        self.n_uses -= 1
        places = [self._places.get(one.picture) for one in shown]
        if self._file is None or None in places:
            return None
        return [self._read(self._file, *place) for place in places if place is not None]

    @staticmethod
    def _read(file: IO[bytes], place: int, size: int) -> bytes:
        file.seek(place)
        return file.read(size)

    def close(self) -> None:
        """Gives the room on the disk back."""
        if self._file is not None:
            self._file.close()


def _name(medium: Medium, folder: MediaReach) -> VideoName | None:
    """The name that clips of one video share; None for an image, and for a video whose bytes are in its row."""
    if medium.kind != "video" or medium.uri is None or medium.data is not None:
        return None
    return ("" if is_absolute(medium.uri) else folder.folder, medium.uri)


def _placed(document: ShardDocument, name: VideoName) -> list[PlacedMedium]:
    """The clips of a video in a document."""
    if document.rendered is None:
        return []
    media: Iterable[ProbedMedium] = (probed for probed, _ in wanted_media(document.rendered))
    return [placed for medium, placed in media if _name(medium, document.file.media) == name]


def _crop(shown: ShownPicture, data: bytes, doc_id: str, first_unit: int) -> Crop:
    width, height = shown.picture.size
    unit = first_unit + shown.unit
    return Crop(doc_id=doc_id, unit=unit, width=width, height=height, timestamp=shown.timestamp, data=data)
