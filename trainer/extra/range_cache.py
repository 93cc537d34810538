"""Ranges of a dataset's files on the node's own disk, shared by all of its processes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import re
import struct
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from preshard.schemas.errors import ReaderError
from preshard.schemas.members import crc32c

REVISION = 1
"""Revision of the form of the folder and its files, which the folder's name has."""

HEAD = struct.Struct("<8s16sIQ")
"""Head of a file: a mark, the range's key, the CRC-32C of the range, and its bytes."""

MARK = b"preshard"

BUCKET_BYTES = 256 << 20
"""Bytes of a folder of ranges, at least. One is listed whenever a range is added to it; none takes a larger range."""

MOST_BUCKETS = 4096

LEAST_LIMIT = 1 << 20

BLOCK = 4096
"""Bytes in which a disk gives room."""

FRESH = 60.0
"""Seconds for which a range stays, if there is another to remove: the ranks of a pack read its header together."""

PATIENCE = 10.0
"""Seconds for which a process waits for another that fetches the same range, before it fetches it itself."""

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt]?i?)b?", re.IGNORECASE)


def read_size(size: int | str) -> int:
    """A number of bytes, or a text such as ``500GB`` or ``64 GiB``.

    Raises:
        ReaderError: it is neither, or too small to keep anything.
    """
    found = _SIZE.fullmatch(str(size).strip())
    unit = _UNITS.get(found[2].lower()) if found else None
    n_bytes = int(float(found[1]) * unit) if found and unit else 0
    if n_bytes < LEAST_LIMIT:
        raise ReaderError(f"cache_limit is {size!r}; give 1 MiB or more, as bytes or as a text such as '500GB'")
    return n_bytes


class RangeCache:
    """Ranges on a disk, never more than a limit, by keys that name their content.

    Any number of processes may use a folder, and be killed at any moment. A range is a file, which appears whole by a
    rename; its checksum is checked whenever it is read, and a damaged one is removed. Files lie in folders of equal
    parts of the limit. Who adds one locks its folder (``flock``, which ends with the process), lists it, and first
    removes as much as the new one needs. So no count of what is there has to survive.

    Where an epoch is larger than the cache, removing the range that was not used for longest would remove each one
    shortly before its next use. Which one goes is therefore drawn by lot.

    No error of the disk leaves this class: what cannot be read or kept is fetched, and the first such error is a
    warning.

    Args:
        folder: where it lies, on a disk of this node.
        limit: bytes of all ranges, with their heads and in whole blocks.

    Raises:
        ReaderError: the limit is none.
    """

    def __init__(self, folder: str | Path, limit: int | str) -> None:
        self._top, self._limit = Path(folder).absolute(), read_size(limit)
        self._folder = self._top / f"ranges-{REVISION}"
        self._buckets, self._fault = 0, ""
        with self._harmless():
            self._buckets = self._open()

    def read(self, name: str, size: int, fetch: Callable[[], bytes]) -> tuple[bytes, bool]:
        """A range, and whether it was here. Of several who ask for one at a time, one fetches it.

        Args:
            name: says which bytes these are, wherever they are read: of the dataset's content, not of its address.
            size: bytes that it has.
            fetch: gives them where they are not here. Its errors are raised.
        """
        key = hashlib.sha256(name.encode()).digest()[:16]
        data = self._find(key, size)
        if data is not None:
            return data, True
        with self._alone(self._folder / "locks" / key.hex()[:2], PATIENCE) as waited:
            # whether it waited or not: another may have fetched it since this one looked
            data = None if waited is None else self._find(key, size)
            if data is not None:
                return data, True
            data = fetch()
            self._keep(key, data)
        return data, False

    def forget(self, name: str) -> None:
        """Removes a range, whose content turned out to be wrong."""
        with self._harmless():
            self._path(hashlib.sha256(name.encode()).digest()[:16]).unlink(missing_ok=True)

    def _open(self) -> int:
        """Makes the folder; the number of folders of ranges, which the first process of all chooses."""
        (self._folder / "locks").mkdir(parents=True, exist_ok=True)
        with self._alone(self._folder / "lock", PATIENCE):
            form = self._folder / "form"
            try:
                buckets, limit = map(int, form.read_text(encoding="ascii").split())
            except FileNotFoundError:
                buckets, limit = max(1, min(self._limit // BUCKET_BYTES, MOST_BUCKETS)), 0
                for number in range(buckets):
                    self._bucket(number).mkdir(exist_ok=True)
            if not 0 < buckets <= MOST_BUCKETS:
                raise ValueError(f"{form} is damaged: remove {self._folder}")
            for number in range(buckets) if limit > self._limit else ():
                with self._alone(self._bucket(number) / "lock", PATIENCE):
                    self._make_room(self._bucket(number), 0, self._limit // buckets)
            if limit != self._limit:
                written = form.with_suffix(".new")
                written.write_text(f"{buckets} {self._limit}", encoding="ascii")
                written.replace(form)
        return buckets

    def _bucket(self, number: int) -> Path:
        return self._folder / f"{number:03x}"

    def _path(self, key: bytes) -> Path:
        return self._bucket(int.from_bytes(key[:4], "big") % self._buckets) / key.hex()

    def _find(self, key: bytes, size: int) -> bytes | None:
        if not self._buckets:
            return None
        with self._harmless():
            path = self._path(key)
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                return None
            data = content[HEAD.size :]
            if content[: HEAD.size] == HEAD.pack(MARK, key, crc32c(data), size) and len(data) == size:
                return data
            path.unlink(missing_ok=True)
        return None

    def _keep(self, key: bytes, data: bytes) -> None:
        if not self._buckets or self._fault:
            return
        with self._harmless():
            path, needed = self._path(key), _blocks(HEAD.size + len(data))
            most = self._limit // self._buckets
            if needed > most:
                return
            with self._alone(path.parent / "lock", PATIENCE) as waited:
                if waited is None:
                    return
                self._make_room(path.parent, needed, most)
                written = path.with_suffix(".new")
                try:
                    with written.open("wb") as file:
                        file.write(HEAD.pack(MARK, key, crc32c(data), len(data)))
                        file.write(data)
                    written.replace(path)
                except OSError:
                    with suppress(OSError):
                        written.unlink(missing_ok=True)
                    raise

    @staticmethod
    def _make_room(bucket: Path, needed: int, most: int) -> None:
        """Removes what a killed process has left half written, and ranges until so many bytes more are no more than the
        most. The folder is locked.
        """
        found = []
        for entry in os.scandir(bucket):
            if entry.name.endswith(".new"):
                Path(entry.path).unlink(missing_ok=True)
            elif entry.name != "lock":
                with suppress(FileNotFoundError):  # a damaged one, which whoever read it has removed
                    status = entry.stat()
                    found.append((status.st_mtime, _blocks(status.st_size), entry.path))
        total, fresh = sum(size for _, size, _ in found) + needed, time.time() - FRESH
        if total <= most:
            return
        random.shuffle(found)
        for _, size, path in sorted(found, key=lambda each: max(each[0], fresh)):
            if total <= most:
                break
            Path(path).unlink(missing_ok=True)
            total -= size

    @contextmanager
    def _alone(self, path: Path, patience: float) -> Iterator[bool | None]:
        """A lock that ends with the process; whether others had it first, or None without it.

        It is given up at the block's end for all copies of the file's number, which a fork makes.
        """
        file, waited, until = -1, False, time.monotonic() + patience
        with self._harmless():
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        held = False
        try:
            while file >= 0 and not held:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    held = True
                except BlockingIOError:
                    waited = True
                    if time.monotonic() >= until:
                        break
                    time.sleep(random.uniform(0.001, 0.02))
                except OSError:  # a filesystem without locks
                    break
            yield waited if held else None
        finally:
            if held:
                fcntl.flock(file, fcntl.LOCK_UN)
            if file >= 0:
                os.close(file)

    @contextmanager
    def _harmless(self) -> Iterator[None]:
        """Says the first error of the disk, and goes on without the cache."""
        try:
            yield
        except (OSError, ValueError) as error:
            if not self._fault:
                reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
                self._fault = reason
                with _SAYING:
                    if str(self._top) not in _SAID:
                        _SAID.add(str(self._top))
                        what = f"cache_dir {self._top}: {reason}; no further ranges are kept there"
                        warnings.warn(what, stacklevel=2)


_SAID = set[str]()
_SAYING = threading.Lock()


def _blocks(size: int) -> int:
    return -(-size // BLOCK) * BLOCK
