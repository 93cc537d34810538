"""Compressed files read at any position: decompressed once to a temporary file, or from a copy that the job keeps.

gzip and Zstandard streams can only be read from their beginning, and packs take their rows from all over a source.
While a file is measured, the job keeps a copy of it in its work folder as Zstandard frames of a fixed size, so that a
row costs the decompression of one frame, on whatever machine it is read.
"""

from __future__ import annotations

import gzip
import io
import shlex
import tempfile
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
from cachetools import LRUCache

from preshard.packer_service.ingest.fetch import Range, read_range, recent_values
from preshard.packer_service.ingest.shell import file_argument
from preshard.packer_service.ingest.source.file import SourceFile, Watched
from preshard.schemas.files.filesystem import locate

FRAME_BYTES = 128 * 2**10
"""Bytes of one frame of a copy: reading a row takes some 0.2 ms, and a copy is a fifth larger than one single frame."""
LEVEL = 1
"""Zstandard's fastest level: a copy lives as long as the job."""
CACHED_BYTES = 64 * 2**20
"""Most memory of the frames that a process keeps."""
SPOOLED_BYTES = 16 * 2**30
"""Most room that the temporary files of a process take; the last one is kept whatever its size."""
READ_BYTES = 64 * 2**10
"""Decompressed bytes read at a time. Of a file that is cut short, what was begun of the last read is lost."""
HEAD_BYTES = 16 * 2**20
"""Decompressed bytes that are looked at for the form of a file's rows."""


class DamagedStreamError(Exception):
    """A compressed file cannot be decompressed from some byte on."""


def decompressed(file: SourceFile) -> Iterator[bytes]:
    """The content of a compressed file, in pieces.

    Raises:
        DamagedStreamError: it is cut short or damaged.
        OSError: it cannot be read.
    """
    filesystem, path = locate(file.uri)
    with filesystem.open_input_file(path) as opened:
        watched = Watched(opened)
        try:
            if file.compression == "gzip":
                # Arrow takes zero bytes behind a member, which fill the last block of a tape, for damage.
                stream = gzip.GzipFile(fileobj=io.BufferedReader(watched, READ_BYTES))
                read = partial(stream.read1, READ_BYTES)
            else:
                stream = pa.CompressedInputStream(pa.PythonFile(watched, "r"), file.compression)
                read = partial(stream.read, READ_BYTES)
            with stream:
                while data := read():
                    yield data
        except (OSError, EOFError, zlib.error, pa.ArrowException) as error:
            if watched.failure is not None:
                raise watched.failure from error
            raise DamagedStreamError(_reason(error, path)) from error


def _reason(error: Exception, path: str) -> str:
    reason = " ".join(str(error).split())[:100]
    if "too much memory" in reason:
        name = path.rpartition("/")[2]
        again = f"zstd -d --long=31 --stdout {file_argument(name)} | zstd -o new.{shlex.quote(name)}"
        reason = f"its window is above 128 MiB, the largest that is read; write it again: {again}"
    return reason


def head(file: SourceFile) -> BinaryIO:
    """The beginning of a compressed file."""
    data = io.BytesIO()
    try:
        for piece in decompressed(file):
            data.write(piece)
            if data.tell() >= HEAD_BYTES:
                break
    except DamagedStreamError:
        pass  # measuring says so
    data.seek(0)
    return data


class Spool:
    """A compressed file's content in a temporary file without a name, which ends with the process.

    ``damage`` says why it ends early, if it does.
    """

    def __init__(self, file: SourceFile) -> None:
        self.content = tempfile.TemporaryFile()  # noqa: SIM115  # closed when it is dropped
        self.damage: str | None = None
        try:
            for piece in decompressed(file):
                self.content.write(piece)
        except DamagedStreamError as error:
            self.damage = str(error)
        self.size = self.content.tell()


_SPOOLS: OrderedDict[tuple[str, int], Spool] = OrderedDict()
_ALONE = threading.Lock()


def spooled(file: SourceFile) -> Spool:
    """The content of a compressed file, decompressed once per process as long as there is room.

    Raises:
        OSError: it cannot be read, or there is no room for temporary files.
    """
    key = (file.uri, file.mtime_ns)
    with _ALONE:
        if key not in _SPOOLS:
            _SPOOLS[key] = Spool(file)
        _SPOOLS.move_to_end(key)
        while len(_SPOOLS) > 1 and sum(spool.size for spool in _SPOOLS.values()) > SPOOLED_BYTES:
            _SPOOLS.popitem(last=False)[1].content.close()
        return _SPOOLS[key]


def keep_copy(spool: Spool, sink: Any) -> None:
    """Writes the content as frames, then the offset of each frame and of the end, and how many frames there are."""
    spool.content.seek(0)
    codec, offsets = pa.Codec("zstd", LEVEL), [0]
    while data := spool.content.read(FRAME_BYTES):
        frame = codec.compress(data, asbytes=True)
        sink.write(frame)
        offsets.append(offsets[-1] + len(frame))
    sink.write(np.array([*offsets, spool.size], "<u8").tobytes())
    sink.write(np.array([len(offsets) - 1], "<u8").tobytes())


class Copy:
    """A kept copy, read at any position."""

    def __init__(self, uri: str) -> None:
        filesystem, path = locate(uri)
        self.opened = filesystem.open_input_file(path)
        length = self.opened.size()
        n_frames = int(np.frombuffer(self.opened.read_at(8, length - 8), "<u8")[0])
        numbers = np.frombuffer(self.opened.read_at(8 * (n_frames + 2), length - 8 * (n_frames + 3)), "<u8")
        self.offsets, self.size = numbers[:-1].tolist(), int(numbers[-1])
        self.frames: LRUCache[int, bytes] = recent_values(CACHED_BYTES, len)

    def read(self, start: int, end: int) -> bytes:
        """Bytes ``[start, end)`` of the content; fewer where it ends before."""
        numbers = range(start // FRAME_BYTES, -(-min(end, self.size) // FRAME_BYTES))
        data = b"".join(map(self._frame, numbers))
        return data[start % FRAME_BYTES :][: end - start]

    def _frame(self, number: int) -> bytes:
        frame = self.frames.get(number)
        if frame is None:
            start, end = self.offsets[number : number + 2]
            whole = min(FRAME_BYTES, self.size - number * FRAME_BYTES)
            data = self.opened.read_at(end - start, start)
            frame = self.frames[number] = pa.Codec("zstd").decompress(data, whole, asbytes=True)
        return frame


_COPIES: LRUCache[tuple[str, SourceFile], Copy] = LRUCache(64)


def read_content(file: SourceFile, start: int, end: int) -> bytes:
    """Bytes ``[start, end)`` of a file, or of what was compressed; fewer where that ends before.

    Raises:
        OSError: it cannot be read.
    """
    if file.compression is None:
        return read_range(Range(file.uri, start, end, file.mtime_ns))
    if file.copy is None:
        content = spooled(file).content
        content.seek(start)
        return content.read(end - start)
    key = (file.copy, file)  # another job can have kept another file in the same place
    if key not in _COPIES:
        _COPIES[key] = Copy(file.copy)
    return _COPIES[key].read(start, end)
