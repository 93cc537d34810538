"""Images in an object store, read before their turn and several at the same time.

A store takes tens of milliseconds for the size of an object and as long again for its bytes, and a decoder that opens
one image after the other would wait for nearly all of its time. Videos are left to it, since it reads parts of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from preshard.packer_service.ingest.background import started
from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media.open import resolve
from preshard.packer_service.ingest.media.reach import MediaReach, is_absolute
from preshard.schemas.errors import PreshardError
from preshard.schemas.filesystem import is_remote

READERS = 16
"""Images that are read at the same time, or have been read and wait for their turn."""
WHOLE = 1 << 23
"""Bytes of the largest image that is read; photographs have fewer, and :data:`READERS` of them must fit into memory."""

PATIENCE = 60.0
"""Seconds to wait for an image, after which it is left to the decoder, whose time is limited."""

Key = tuple[MediaReach, str]
"""Which image it is: what its URI is relative to and may reach, and the URI."""


@dataclass(kw_only=True)
class _Expected:
    key: Key
    content: Future[bytes | None] | None = None


class ImagesAhead:
    """Reads images in the order in which they will be taken. For one thread at a time."""

    def __init__(self) -> None:
        self._expected: deque[_Expected] = deque()

    def expect(self, media: Iterable[Medium], folder: MediaReach) -> int:
        """Says which media are taken next, after those that were expected before.

        Args:
            media: images and videos of one document.
            folder: see :func:`preshard.packer_service.ingest.media.open.open_media`.

        Returns:
            How many of them are read ahead.
        """
        keys = [(folder, medium.uri) for medium in media if medium.uri is not None and _is_read_ahead(medium, folder)]
        self._expected += [_Expected(key=key) for key in keys]
        self._read()
        return len(keys)

    def forget(self) -> None:
        """Nothing that was expected is taken any more."""
        self._expected.clear()

    def take(self, medium: Medium, folder: MediaReach) -> Medium:
        """A medium with its bytes, if they were read ahead, else as it is: whoever opens it finds out what is wrong.

        What was expected before it and not taken is forgotten: its document has failed.
        """
        key = (folder, medium.uri or "")
        if medium.data is not None or not any(each.key == key for each in self._expected):
            return medium
        while (first := self._expected.popleft()).key != key:
            pass
        self._read()
        try:
            data = first.content.result(PATIENCE) if first.content is not None else None
        except TimeoutError:
            data = None
        return medium if data is None else replace(medium, data=data)

    def _read(self) -> None:
        for each, _ in zip(self._expected, range(READERS), strict=False):
            if each.content is None:
                each.content = started(partial(_content, *each.key), "image")


AHEAD = ImagesAhead()
"""Those of the packing process, which measures, renders or decodes one document after the other."""


def _is_read_ahead(medium: Medium, folder: MediaReach) -> bool:
    if medium.kind != "image" or medium.uri is None or medium.data is not None:
        return False
    return is_remote(medium.uri if is_absolute(medium.uri) else folder.folder)


def _content(folder: MediaReach, uri: str) -> bytes | None:
    """All bytes of an image, or None: it is too large, or cannot be read."""
    try:
        filesystem, path = resolve(uri, folder)
        with filesystem.open_input_file(path) as file:
            size = file.size()
            data: bytes | None = file.read_at(size, 0) if size <= WHOLE else None
            return data
    except (OSError, ValueError, pa.ArrowException, PreshardError):
        return None
