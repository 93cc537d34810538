"""Stores that fail: a row is rejected when its medium cannot be had, and the job stops when a store must be down."""

from __future__ import annotations

import errno
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from threading import Lock
from typing import TypeVar

import pyarrow as pa

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.fetch import started
from preshard.packer_service.ingest.media.reach import MediaReach, is_absolute
from preshard.schemas.errors import DocumentError, PreshardError
from preshard.schemas.files.filesystem import is_remote, locate, split_query
from preshard.schemas.files.printed import without_secrets

READERS = 16
"""Images that are read at the same time, or have been read and wait for their turn."""
WHOLE = 1 << 23
"""Bytes of the largest image that is read; photographs have fewer, and :data:`READERS` of them must fit into memory."""

PATIENCE = 60.0
"""Seconds to wait for an image, after which it is left to the decoder, whose time is limited."""

Key = tuple[MediaReach, str]
"""Key of an image: the folder that its URI is relative to, what it may reach, and the URI."""


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
            folder: see :func:`preshard.packer_service.ingest.media.reach.open_media`.

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
"""Images read ahead by the packing process, which measures, renders or decodes one document after the other."""


def _is_read_ahead(medium: Medium, folder: MediaReach) -> bool:
    if medium.kind != "image" or medium.uri is None or medium.data is not None:
        return False
    return is_remote(medium.uri) if is_absolute(medium.uri) else not folder.others and is_remote(folder.folder)


def _content(folder: MediaReach, uri: str) -> bytes | None:
    """All bytes of an image, or None: it is too large, or cannot be read."""
    try:
        filesystem, path = locate(folder.location(uri))
        with filesystem.open_input_file(path) as file:
            size = file.size()
            data: bytes | None = file.read_at(size, 0) if size <= WHOLE else None
            return data
    except (OSError, ValueError, pa.ArrowException, PreshardError):
        return None


T = TypeVar("T")

RETRY_SECONDS = 30.0
"""Seconds for which a medium is tried again, beside retries of the store's own client, if the store answered before."""
FIRST_WAIT = 1.0
"""Seconds before the second try; each wait is twice the one before."""
MOST_FAILURES = 8
"""Media that fail one after the other, from which on their store is down."""
REASON_CHARACTERS = 200

_LOCAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Failures of this machine, not of a store."""
_FINAL = re.compile("ACCESS_DENIED|NO_SUCH_BUCKET|INVALID_ACCESS_KEY|EXPIRED_TOKEN|Unable to load|PERMISSION_DENIED")
"""Errors that trying again does not mend."""

_ROW: ContextVar[str] = ContextVar("row", default="a row")


class StoreDownError(OSError):
    """A store failed for many rows, one after the other; no document is at fault."""


@contextmanager
def reading_row(location: str) -> Iterator[None]:
    """Says which row the media are of that are asked for in this block."""
    token = _ROW.set(location)
    try:
        yield
    finally:
        _ROW.reset(token)


@dataclass(kw_only=True)
class _Failures:
    number: int
    first: str


class Stores:
    """State of the stores that rows name, as this process knows it."""

    def __init__(self) -> None:
        self._failures: dict[str, _Failures] = {}
        self._lock = Lock()

    def ask(self, medium: Medium, base: MediaReach, call: Callable[[], T]) -> T:
        """Calls a function that reads a medium, which may be tried several times.

        Raises:
            DocumentError: as the call raised it, or ``unreachable_media``: a store did not give the medium.
            StoreDownError: it was one too many in a row.
            OSError: a disk of this machine failed.
        """
        store = _store(medium, base)
        began, wait = time.monotonic(), FIRST_WAIT
        while True:
            try:
                result = call()
            except DocumentError:
                self._answered(store)
                raise
            except ChildProcessError:  # the decoder's process was ended
                raise
            except OSError as error:
                if store is None or error.errno in _LOCAL:
                    raise
                again = store not in self._failures and not _FINAL.search(str(error))
                if not again or time.monotonic() + wait - began > RETRY_SECONDS:
                    raise self._failed(store, medium, error) from None
                time.sleep(wait)
                wait *= 2
            else:
                self._answered(store)
                return result

    def _answered(self, store: str | None) -> None:
        if store in self._failures:
            with self._lock:
                self._failures.pop(store, None)

    def _failed(self, store: str, medium: Medium, error: OSError) -> Exception:
        reason = without_secrets(" ".join(str(error).split()))[:REASON_CHARACTERS]
        with self._lock:
            failures = self._failures.setdefault(store, _Failures(number=0, first=f"{_ROW.get()} ({medium.label})"))
            failures.number += 1
            if failures.number < MOST_FAILURES:
                return DocumentError("unreachable_media", f"{medium.label}: the store did not give it: {reason}")
        return StoreDownError(
            f"{store} is down: it gave none of {failures.number} images and videos one after the other, "
            f"the first of {failures.first}: {reason}"
        )


def _store(medium: Medium, base: MediaReach) -> str | None:
    """Scheme and host of the store that a medium lies in; None on a disk of this machine."""
    files = [frame for frame in (medium, *medium.frames) if frame.uri is not None and frame.data is None]
    for uri in (file.uri or "" for file in files):
        where = uri if is_absolute(uri) else base.folder
        if is_remote(where):
            scheme, _, rest = split_query(where)[0].partition("://")
            return without_secrets(f"{scheme.lower()}://{rest.partition('/')[0].lower()}")
    return None


STORES = Stores()
"""The stores of the packing process."""
