"""A file that remembers an error of its file system, so that damage and an outage can be told apart."""

from __future__ import annotations

import io
from typing import Any


class Watched(io.RawIOBase):
    """Reads another file. Arrow raises OSError for damaged data as well; ``failure`` is one of the file system."""

    def __init__(self, opened: Any) -> None:
        self.opened = opened
        self.failure: OSError | None = None

    def read(self, size: int = -1) -> bytes:
        try:
            data: bytes = self.opened.read(None if size < 0 else size)
            return data
        except OSError as error:
            self.failure = error
            raise

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return int(self.opened.seek(offset, whence))

    def tell(self) -> int:
        return int(self.opened.tell())

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True
