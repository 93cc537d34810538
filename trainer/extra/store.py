"""Reads of a dataset in a store: again where one fails, several packs at a time, and through a cache of the node."""

from __future__ import annotations

import io
import queue
import random
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pyarrow as pa
from pyarrow import fs

from preshard.schemas.dataset.read_manifest import SHARD_LIST, decode_head, read_manifest_head
from preshard.schemas.errors import (
    FormatError,
    ManifestInvalid,
    ManifestMissing,
    ReaderError,
    ShardChanged,
    ShardMissing,
    TableMissing,
)
from preshard.schemas.files.filesystem import FileRefusedError, open_regular, read_within
from preshard.schemas.files.printed import shown
from preshard.schemas.manifest import MANIFEST, SHARDS, ManifestHead
from preshard.trainer.data.pack_index import PACKS_TABLE
from preshard.trainer.extra.threads import ENDS, start
from preshard.trainer.extras import load_extra

Step = TypeVar("Step")
Read = TypeVar("Read")

AHEAD = 2
"""Packs that are read ahead from a store. One of video can be a few hundred MB of pixels."""

WHOLE = 256 << 20
"""Largest sample in bytes of which a rank that needs all of it asks for all at once."""

WHOLE_MANIFEST = 1 << 20
"""Largest manifest in bytes that a store is asked for whole, and that is held against its hash: some 6,700 shards."""

SMALL = 256 << 10
"""Largest sample in bytes of which any rank asks for all: a second request would take longer than the rest of it."""

TIMEOUT = 120.0
"""Seconds for which a range is asked for again, before the run ends with the store's last error, unless it is said."""

FIRST_WAIT, LONGEST_WAIT = 0.1, 10.0
"""Seconds before a range is asked for again: drawn below the first, doubled with each failure, below the last."""

SLOW, LEAST_SLOW = 4, 0.2
"""A request is sent a second time after so many times the mean of those before, and after so many seconds at least."""

STUCK, SLOWEST = 30.0, 1 << 20
"""Seconds after which both are given up, and asked for again, and bytes for each of which a second more is waited."""

DAMAGED = 2
"""Further times that a file is read whose bytes cannot be decoded, or a range that is shorter than its file says."""

OPEN_FILES = 64
"""Files kept open at once, each the size that a store has said of it."""

LASTING = (
    "ACCESS_DENIED",
    "NO_SUCH_",
    "INVALID_ACCESS_KEY",
    "INVALID_ARGUMENT",
    "SIGNATURE",
    *(f"HTTP status {status}" for status in (301, 400, 401, 403, 404, 405)),
    "401 Unauthorized",
    "403 Forbidden",
)
"""Words of errors that are the same the next time: another region's bucket, or an expired token, among them."""


class Store:
    """Reads of one dataset's ranges. It can be pickled, and be used by several threads.

    Args:
        files: the dataset's files.
        filesystem: that holds them.
        root: their folder there.
        cache: of their ranges on this node, or None.
        timeout: seconds after which a store that fails or hangs is an error.
    """

    def __init__(
        self, files: Any, filesystem: fs.FileSystem, root: str, cache: Any = None, *, timeout: float = TIMEOUT
    ) -> None:
        self._files, self._root, self._cache = files, root.rstrip("/"), cache
        self._timeout = min(timeout, threading.TIMEOUT_MAX)  # whoever waits for ever gives infinity
        self.is_remote = not isinstance(filesystem, fs.LocalFileSystem)
        self._filesystem = _asking_once(filesystem) if isinstance(filesystem, fs.S3FileSystem) else filesystem
        self.__setstate__({})

    def persist(self, name: str, call: Callable[[], Read]) -> Read:
        """Calls what opens a file and reads it, again where the store fails or gives what cannot be decoded.

        Raises:
            ReaderError: the store has not given it within the time.
        """
        if not self.is_remote:
            return call()
        until, wait, tries, faults, fault = time.monotonic() + self._timeout, FIRST_WAIT, 0, 0, ""
        while True:
            tries += 1
            asking = start(call)
            try:
                return asking.result(max(until - time.monotonic(), 0))
            except (ManifestMissing, TableMissing, ReaderError, FileRefusedError):
                raise
            except Exception as error:  # each filesystem has errors of its own
                faults += isinstance(error, FormatError)
                if faults > DAMAGED:
                    raise
                fault, lasts = str(error) or fault, _lasts(error)
                if lasts or not asking.done() or time.monotonic() + wait > until:
                    raise self._gave_up(name, tries, fault, lasts=lasts) from None
            _pause(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    def read_head(self, file: Any) -> ManifestHead:
        """A manifest's head, by one request.

        The list of shards, which may be a hundred times as long, and the hash over both are left unread where they go
        beyond :data:`WHOLE_MANIFEST`: a store checks what it keeps.

        Raises:
            ManifestInvalid: it breaks the format.
        """
        if not self.is_remote:
            return read_manifest_head(file, MANIFEST)
        start = file.read(WHOLE_MANIFEST)
        if len(start) < WHOLE_MANIFEST:
            return read_manifest_head(io.BytesIO(start), MANIFEST)
        try:
            return decode_head(start.partition(SHARD_LIST)[0] + b"}", MANIFEST)
        except ManifestInvalid:  # whatever else it is, it is read whole, and refused as that
            file.seek(0)
            return read_manifest_head(file, MANIFEST)

    def read_pack(self, packs: Any, pack_id: int, read: Callable[..., Any], *, whole: bool) -> Any:
        """One pack's part of a rank, as ``read`` makes it of what reads its ranges and of the pack's place.

        What breaks the format is read again, past the cache: bytes may have been damaged on their way.

        Args:
            packs: the places of packs.
            pack_id: the pack.
            read: makes the part.
            whole: whether it is all of the sample, so that one request is enough.
        """
        with self._lock:  # tables are not for several threads
            place = self.persist(PACKS_TABLE, partial(packs.__getitem__, pack_id))
        reading = PackRanges(self, place, whole=place.size <= (WHOLE if whole else SMALL))
        try:
            batch = self._read(reading, place, read)
        finally:
            with self._lock:
                self._files.bytes_read += reading.bytes_read
        return replace(batch, reads=reading.counts)

    def _read(self, reading: PackRanges, place: Any, read: Callable[..., Read]) -> Read:
        faults = 0
        while True:
            try:
                return read(reading, place)
            except ShardMissing:
                raise
            except FormatError:
                faults += 1
                if faults > DAMAGED or not (self.is_remote or reading.counts["cached_bytes"]):
                    raise
            self.close()  # what a file has read ahead may be what is wrong
            reading.start_afresh()

    def read_range(self, name: str, offset: int, size: int, counts: dict[str, int], *, fresh: bool) -> bytes:
        """Exactly ``size`` bytes of a file, from the cache or the store.

        Args:
            name: the file's, below the dataset's folder.
            offset: of the first byte.
            size: how many.
            counts: what is added to.
            fresh: whether to read past the cache, and to correct it.

        Raises:
            FormatError: the file is missing or ends earlier.
            ReaderError: the store has not given it within the time.
        """

        def fetch() -> bytes:
            return self._fetch(name, offset, size, counts)

        if self._cache is None:
            return fetch()
        key = f"{self._files.manifest.table('packs.parquet').sha256}/{name}/{offset}/{size}"
        if fresh:
            self._cache.forget(key)
        data: bytes
        data, was_there = self._cache.read(key, size, fetch)
        counts["cached_bytes"] += size * was_there
        return data

    def _fetch(self, name: str, offset: int, size: int, counts: dict[str, int]) -> bytes:
        until, wait, tries = time.monotonic() + self._timeout * self.is_remote, FIRST_WAIT, 0
        while True:
            tries += 1
            try:
                data = self._ask_twice(name, offset, size, counts, until)
            except FormatError:
                raise
            except Exception as error:  # each filesystem has errors of its own
                if not self.is_remote:
                    raise
                fault, is_last = str(error), _lasts(error)
            else:
                if len(data) == size:
                    return data
                fault, is_last = f"gave {len(data)} of the {size} bytes from byte {offset}", tries > DAMAGED
                if is_last and self._opened(name, counts).size() < offset + size:
                    found = f"has only {len(data)} of the {size} bytes from byte {offset}: it was cut short"
                    raise ShardChanged(name, found)
                is_last = is_last and not self.is_remote
            if is_last or time.monotonic() + wait > until:
                raise self._gave_up(name, tries, fault, lasts=is_last)
            counts["retries"] += 1
            _pause(wait)
            wait = min(2 * wait, LONGEST_WAIT)
            with self._lock:
                self._open.pop(name, None)

    def _gave_up(self, name: str, tries: int, fault: str, *, lasts: bool = False) -> ReaderError:
        tried = "once" if tries == 1 else f"{tries} times"
        said = f"asked {tried}, last: {' '.join(fault.split()) or 'no answer'}"
        if not lasts:
            said = f"no usable answer in {self._timeout:g} s ({said}); store_timeout (--store-timeout) waits longer"
        return ReaderError(shown(f"{self._files.address(name)}: {said}"))

    def _ask_twice(self, name: str, offset: int, size: int, counts: dict[str, int], until: float) -> bytes:
        """Asks for a range, and again beside that where no answer comes as soon as others came; the first counts."""

        def ask() -> bytes:
            counts["requests"] += 1
            data = read_within(self._opened(name, counts), offset, size)
            counts["fetched_bytes"] += len(data)
            return data

        if not self.is_remote:
            return ask()
        answers: queue.SimpleQueue[Future[bytes]] = queue.SimpleQueue()
        began, asked = time.monotonic(), 1
        start(ask).add_done_callback(answers.put)
        patience, failed = max(LEAST_SLOW, SLOW * self._mean), None
        while True:
            try:
                answer = answers.get(timeout=max(min(patience, until - time.monotonic()), 0))
            except queue.Empty:
                if asked == 2 or time.monotonic() >= until:
                    raise TimeoutError(f"no answer in {time.monotonic() - began:.0f} s") from None
                counts["retries"] += 1
                with self._lock:
                    if name in self._open and not self._open[name].done():
                        del self._open[name]
                start(ask).add_done_callback(answers.put)
                asked, patience = 2, STUCK + size / SLOWEST
                continue
            if answer.exception() is None:
                self._mean += (time.monotonic() - began - self._mean) / 8
                return answer.result()
            failed, asked = answer, asked - 1
            if not asked:
                return failed.result()

    def _opened(self, name: str, counts: dict[str, int]) -> pa.NativeFile:
        """A file, which is not closed when others take its place: another thread may be reading it."""
        with self._lock:
            known, opening = self._open.get(name), Future[pa.NativeFile]()
            if known is None:
                self._open[name] = opening
            self._open.move_to_end(name)
            while len(self._open) > OPEN_FILES:
                self._open.popitem(last=False)
        if known is not None:
            return known.result()
        counts["requests"] += self.is_remote
        try:
            opening.set_result(open_regular(self._filesystem, f"{self._root}/{name}", name))
        except (FileNotFoundError, NotADirectoryError):
            opening.set_exception(ShardMissing(self._files.address(name), "is missing"))
        except BaseException as error:
            opening.set_exception(error)
        if opening.exception() is not None:
            with self._lock:
                self._open.pop(name, None)
        return opening.result()

    def close(self) -> None:
        """Lets go of every open file."""
        with self._lock:
            self._open.clear()

    def __getstate__(self) -> dict[str, Any]:
        kept = ("_files", "_filesystem", "_root", "_cache", "_timeout", "is_remote")
        return {name: self.__dict__[name] for name in kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock, self._mean = threading.RLock(), 0.0
        self._open: OrderedDict[str, Future[pa.NativeFile]] = OrderedDict()


class PackRanges:
    """Ranges of one pack, as one reading of it asks for them.

    Attributes:
        bytes_read: bytes asked for, wherever they came from.
        counts: ``requests`` to the store, for sizes of files too, ``retries`` of these that followed another one which
            failed or was slow, ``fetched_bytes`` that the store sent, and ``cached_bytes`` that came from the node's
            cache.
    """

    def __init__(self, store: Store, place: Any, *, whole: bool) -> None:
        self._store, self._place, self._whole = store, place, whole
        self.counts = {"requests": 0, "retries": 0, "fetched_bytes": 0, "cached_bytes": 0}
        self.bytes_read, self._fresh = 0, False
        self._sample: bytes | None = None

    def read_range(self, shard: str, offset: int, size: int) -> bytes:
        """Exactly ``size`` bytes of a shard from ``offset``: ``DatasetFiles.read_range`` for this pack."""
        place = self._place
        if not self._whole:
            return self._ask(shard, offset, size)
        if self._sample is None:
            self._sample = self._ask(shard, place.offset, place.size)
        return self._sample[offset - place.offset :][:size]

    def _ask(self, shard: str, offset: int, size: int) -> bytes:
        self.bytes_read += size
        return self._store.read_range(f"{SHARDS}/{shard}", offset, size, self.counts, fresh=self._fresh)

    def start_afresh(self) -> None:
        """Reads everything again, past the cache."""
        self._sample, self._fresh, self.bytes_read = None, True, 0
        self.counts["retries"] += 1


def open_store(
    files: Any,
    filesystem: fs.FileSystem,
    root: str,
    *,
    cache_dir: Any = None,
    cache_limit: int | str | None = None,
    store_timeout: float = TIMEOUT,
) -> Store | None:
    """The reads of a dataset's ranges; None where they are this machine's files, and no cache is asked for.

    Raises:
        ReaderError: a cache without a limit, a limit without a cache, or one that is no size; or no time.
    """
    if not store_timeout > 0:  # nor is it NaN
        raise ReaderError(f"store_timeout is {store_timeout!r}; give seconds above 0, such as 120")
    if cache_dir is None:
        if cache_limit is not None:
            raise ReaderError(f"cache_limit is {cache_limit!r} without cache_dir: name a folder on this node's disk")
        return (
            None
            if isinstance(filesystem, fs.LocalFileSystem)
            else Store(files, filesystem, root, timeout=store_timeout)
        )
    if cache_limit is None:
        raise ReaderError(f"cache_dir is {cache_dir} without cache_limit: give the bytes it may take, such as '500GB'")
    cache = load_extra("range_cache").RangeCache(cache_dir, cache_limit)
    return Store(files, filesystem, root, cache, timeout=store_timeout)


def read_ahead(calls: Iterator[tuple[Step, Callable[[], Read]]], number: int) -> Iterator[tuple[Step, Read]]:
    """Results of calls in their order, of which so many are made ahead, in threads. Each error comes in its turn.

    The first is made alone: whoever waits for it needs none of the others yet, which would take turns with it.
    """
    begun, is_first = deque[tuple[Step, Future[Read]]](), True
    for step, call in calls:
        begun.append((step, start(call)))
        if is_first:
            begun[0][1].exception()  # waits for it; it is raised below
            is_first = False
        if len(begun) > number:
            first, found = begun.popleft()
            yield first, found.result()
    for first, found in begun:
        yield first, found.result()


def _pause(wait: float) -> None:
    """Waits for a time drawn below the given one, so that ranks that failed together do not ask together again."""
    if ENDS.wait(random.uniform(0, wait)):
        raise ReaderError("the process ends while a store is asked again")


def _lasts(error: Exception) -> bool:
    kinds = (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError, AttributeError, TypeError)
    return isinstance(error, kinds) or any(word in str(error) for word in LASTING)


def _asking_once(filesystem: fs.S3FileSystem) -> fs.S3FileSystem:
    """The same store, by a client that does not ask again by itself, which nobody could count."""
    settings = filesystem.__reduce__()[1][0]  # what it is pickled as, credentials that it looks up not among them
    return fs.S3FileSystem(**{**settings, "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=1)})
