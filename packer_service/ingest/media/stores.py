"""Stores that fail: a row is rejected when its medium cannot be had, and the job stops when a store must be down."""

from __future__ import annotations

import errno
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import TypeVar

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media.reach import MediaReach, is_absolute
from preshard.schemas.errors import DocumentError
from preshard.schemas.filesystem import is_remote, split_query
from preshard.schemas.secrets import without_secrets

T = TypeVar("T")

RETRY_SECONDS = 30.0
"""How long a medium is tried again, beside the retries of the store's own client, if the store answered before."""
FIRST_WAIT = 1.0
"""Seconds before the second try; each wait is twice the one before."""
MOST_FAILURES = 8
"""Media that fail one after the other, from which on their store is down."""
REASON_CHARACTERS = 200

_LOCAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EMFILE, errno.ENFILE, errno.ENOMEM)
"""Failures of this machine, not of a store."""
_FINAL = re.compile("ACCESS_DENIED|NO_SUCH_BUCKET|INVALID_ACCESS_KEY|EXPIRED_TOKEN|Unable to load|PERMISSION_DENIED")
"""What trying again does not mend."""

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
    """What is known in this process of the stores that rows name."""

    def __init__(self) -> None:
        self._failures: dict[str, _Failures] = {}
        self._lock = Lock()

    def ask(self, medium: Medium, base: MediaReach, call: Callable[[], T]) -> T:
        """What a call gives that reads a medium, which may be tried several times.

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
"""Those of the packing process."""
