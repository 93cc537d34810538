"""Megatron's indexed datasets: ``NAME.bin`` holds tokens; ``NAME.idx`` says where sequences and documents lie in it.

The index, little-endian: magic, version, dtype code, numbers of sequences and of document edges; then lengths of
sequences (int32), their first bytes in the ``.bin`` (int64), edges of documents as numbers of sequences (int64), and in
multimodal datasets a mode for each sequence (int8). As ``megatron.core.datasets.indexed_dataset`` of Megatron Core 0.16
writes it.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, repeat
from typing import Any

import numpy as np
import pyarrow as pa
from cachetools import LRUCache
from jaxtyping import Int64
from pyarrow import fs

from preshard.packer_service.ingest.fetch import Range, read_range
from preshard.packer_service.ingest.shell import ignore_option
from preshard.packer_service.ingest.source.file import Found, SourceFile, reason_of
from preshard.packer_service.ingest.stream import MAX_TOKENS, too_long
from preshard.schemas.errors import ConfigError, DocumentError
from preshard.schemas.files.filesystem import locate, split_query

FRAGMENT_BYTES = 8 * 2**20
"""Bytes of the ``.bin`` that one task measures, about: tasks get equal numbers of documents."""
FRAGMENT_DOCUMENTS = 2**16
"""Most documents that one task measures."""
DOCUMENTS_READ = 2**12
"""Documents whose places are read at a time."""
SEQUENCES_READ = 2**20
"""Most sequences whose places are read at a time, and of a document: 12 MB of the index."""

_HEADER = struct.Struct("<9sQBQQ")
_MAGIC = b"MMIDIDX\x00\x00"
_DTYPES = {1: "u1", 2: "i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOATS = {6: "float64", 7: "float32"}


def index_uri(uri: str) -> str:
    """The index of a ``.bin``."""
    path, query = split_query(uri)
    return f"{path[: -len('bin')]}idx{query}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Index:
    """Header of an index."""

    uri: str
    mtime_ns: int
    dtype: np.dtype[Any]
    n_sequences: int
    n_documents: int
    has_modes: bool

    def lengths(self, first: int, end: int) -> Int64[np.ndarray, "sequences"]:
        """Tokens of each sequence."""
        return self._numbers(0, "<i4", first, end)

    def pointers(self, first: int, end: int) -> Int64[np.ndarray, "sequences"]:
        """The first byte of each sequence."""
        return self._numbers(4 * self.n_sequences, "<i8", first, end)

    def edges(self, first: int, end: int) -> Int64[np.ndarray, "edges"]:
        """The first sequence of each document; behind the last one, the number of sequences."""
        return self._numbers(12 * self.n_sequences, "<i8", first, end)

    def modes(self, first: int, end: int) -> Int64[np.ndarray, "sequences"]:
        """The mode of each sequence, 0 where the dataset has none."""
        if not self.has_modes:
            return np.zeros(end - first, np.int64)
        return self._numbers(12 * self.n_sequences + 8 * (self.n_documents + 1), "i1", first, end)

    def _numbers(self, before: int, dtype: str, first: int, end: int) -> Int64[np.ndarray, "n"]:
        start, size = _HEADER.size + before, np.dtype(dtype).itemsize
        data = read_range(Range(self.uri, start + first * size, start + end * size, self.mtime_ns))
        if len(data) < (end - first) * size:
            raise OSError(f"{self.uri} has become shorter")
        return np.frombuffer(data, dtype).astype(np.int64)


_INDEXES: LRUCache[tuple[str, int], Index] = LRUCache(256)


def index_of(file: SourceFile) -> Index:
    """The index of a file of tokens.

    Raises:
        ConfigError: it is missing, is no index, or not that of the file.
        OSError: it cannot be read.
    """
    key = (file.uri, file.mtime_ns)
    found = _INDEXES.get(key)
    if found is None:
        found = _INDEXES[key] = _opened(file)
    return found


def with_index(file: SourceFile) -> SourceFile:
    """A file of tokens whose ``mtime_ns`` is that of its index, if that was written later.

    Raises:
        ConfigError: it has no index, or a wrong one.
    """
    index = _opened_or_refused(file)
    ready = replace(file, mtime_ns=max(file.mtime_ns, index.mtime_ns))
    _INDEXES[ready.uri, ready.mtime_ns] = index
    return ready


def _opened(file: SourceFile) -> Index:
    uri = index_uri(file.uri)
    filesystem, path = locate(uri)
    info = filesystem.get_file_info(path)
    if info.type != fs.FileType.File:
        raise _refused(file, "is not there", "a .bin of tokens is read by the .idx beside it")
    mtime_ns = info.mtime_ns or 0
    header = read_range(Range(uri, 0, _HEADER.size, mtime_ns))
    if len(header) < _HEADER.size or not header.startswith(_MAGIC):
        leave_out = f"{ignore_option(file.label)} leaves the .bin out"
        raise _refused(file, "is not an index of Megatron", f"its 34 bytes of header begin with MMIDIDX; {leave_out}")
    _, version, code, n_sequences, n_edges = _HEADER.unpack(header)
    if version != 1:
        raise _refused(file, f"has version {version}", "1 is read")
    if code not in _DTYPES:
        legal = ", ".join(f"{code} ({np.dtype(name).name})" for code, name in _DTYPES.items())
        raise _refused(file, f"has dtype code {code} ({_FLOATS.get(code, 'unknown')})", f"tokens are {legal}")
    size = _HEADER.size + 12 * n_sequences + 8 * n_edges
    if info.size not in (size, size + n_sequences) or not n_edges:
        asked = f"its header asks for {size}, or {size + n_sequences} with modes"
        raise _refused(file, f"has {info.size} bytes, {n_sequences} sequences and {n_edges} edges of documents", asked)
    return _checked(
        file,
        Index(
            uri=uri,
            mtime_ns=mtime_ns,
            dtype=np.dtype(_DTYPES[code]),
            n_sequences=n_sequences,
            n_documents=n_edges - 1,
            has_modes=info.size > size,
        ),
    )


def _checked(file: SourceFile, index: Index) -> Index:
    """The index, if its documents hold all sequences and its last sequence ends with the ``.bin``."""
    last = index.n_sequences
    outer = [int(index.edges(at, at + 1)[0]) for at in (0, index.n_documents)]
    if outer != [0, last]:
        raise _refused(file, f"has documents of sequences {outer[0]} to {outer[1]}", f"it has {last} sequences")
    end = 0
    if last:
        length, start = int(index.lengths(last - 1, last)[0]), int(index.pointers(last - 1, last)[0])
        end = start + length * index.dtype.itemsize
    if end != file.size:
        raise _refused(file, f"ends at byte {end} of the .bin", f"that has {file.size} bytes; copy both files again")
    return index


def _refused(file: SourceFile, what: str, why: str) -> ConfigError:
    return ConfigError(f"SOURCE {file.uri}: {posixpath.basename(split_query(index_uri(file.uri))[0])} {what}; {why}")


def schema(file: SourceFile) -> pa.Schema:
    """The columns.

    Raises:
        ConfigError: it has no index, or a wrong one.
    """
    _opened_or_refused(file)
    return pa.schema([("input_ids", pa.list_(pa.int64()))])


def _opened_or_refused(file: SourceFile) -> Index:
    try:
        return _opened(file)
    except OSError as error:
        raise _refused(file, "cannot be read", reason_of(error)) from None


def fragments(file: SourceFile) -> list[tuple[int, int]]:
    """Ranges of documents, of some bytes on average.

    Raises:
        ConfigError: it has no index, or a wrong one.
    """
    n_documents = index_of(file).n_documents
    parts = max(-(-file.size // FRAGMENT_BYTES), -(-n_documents // FRAGMENT_DOCUMENTS), 1)
    step = max(-(-n_documents // parts), 1)
    return [(at, min(at + step, n_documents)) for at in range(0, n_documents, step)]


def scan(opened: Any, file: SourceFile, start: int, end: int) -> Iterator[Found]:
    """Documents ``[start, end)``, by number. One whose place cannot be right is a reject.

    Raises:
        OSError: the index cannot be read.
    """
    index = index_of(file)
    end = min(end, index.n_documents)
    for first in range(start, end, DOCUMENTS_READ):
        for place in _places(index, file.size, first, min(first + DOCUMENTS_READ, end)):
            if isinstance(place, DocumentError):
                yield Found(0, 0, place)
                continue
            offset, size = place
            opened.seek(offset)
            yield Found(offset, size, _row(opened.read(size), index))


def decode(data: bytes, file: SourceFile) -> Any:
    """A row from the bytes of its tokens."""
    try:
        return _row(data, index_of(file))
    except ConfigError as error:  # the index was replaced
        return DocumentError("bad_row", str(error))


def _row(data: bytes, index: Index) -> Any:
    if len(data) % index.dtype.itemsize:
        return DocumentError("bad_row", "the .bin ends within a token")
    return {"input_ids": np.frombuffer(data, index.dtype).tolist()}


def _places(index: Index, size: int, first: int, end: int) -> Iterator[tuple[int, int] | DocumentError]:
    """Offset and size of each document in the ``.bin``, or why it has none."""
    before = max(first - 1, 0)  # with the neighbours on both sides: an edge that is wrong may still fit one of them
    edges = index.edges(before, min(end + 2, index.n_documents + 1))
    if edges[0] < 0 or edges[-1] > index.n_sequences or (np.diff(edges) < 0).any():
        what = f"the index has edges of documents {first} to {end} that are out of order: none of these can be read"
        yield from repeat(DocumentError("bad_row", what), end - first)
        return
    edges = edges[first - before :][: end - first + 1]
    n_sequences = int(edges[-1] - edges[0])
    if n_sequences > SEQUENCES_READ:
        if end - first > 1:
            half = (first + end) // 2
            yield from _places(index, size, first, half)
            yield from _places(index, size, half, end)
        else:
            limit = f"more than the limit of {SEQUENCES_READ}"
            yield DocumentError("too_long", f"the document has {n_sequences} sequences, {limit}")
        return
    # Again with the neighbours: a sequence begins where the one before it ends.
    low, high = max(int(edges[0]) - 1, 0), min(int(edges[-1]) + 1, index.n_sequences)
    lengths, starts = index.lengths(low, high), index.pointers(low, high)
    ends, modes = starts + lengths * index.dtype.itemsize, index.modes(low, high)
    sound = (lengths >= 0) & (starts >= 0) & (starts <= size) & (ends <= size)
    joined = starts[1:] == ends[:-1]
    sound[1:] &= joined
    sound[:-1] &= joined
    if low == 0 and len(starts):
        sound[0] &= starts[0] == 0
    for start, stop in pairwise((edges - low).tolist()):
        tokens = int(lengths[start:stop].sum())
        if not sound[start:stop].all():
            at = start + int(sound[start:stop].argmin())
            what = f"sequence {low + at} at bytes {starts[at]} to {ends[at]} of a .bin of {size} bytes"
            yield DocumentError("bad_row", f"the index has {what}, which leaves a gap, overlaps or lies outside")
        elif modes[start:stop].any():
            at = start + int((modes[start:stop] != 0).argmax())
            what = f"sequence {low + at} has mode {modes[at]}, so it is not text"
            yield DocumentError("bad_row", f"{what}; write rows with images as messages")
        elif tokens > MAX_TOKENS:
            yield too_long(tokens)
        else:
            yield (int(starts[start]) if tokens else 0, tokens * index.dtype.itemsize)
