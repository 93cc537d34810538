"""Writes samples into one tar file: offsets and the hash come from the very bytes that are written."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from preshard.packer_service.shards.store import Folder, HashingSink
from preshard.schemas.encode import TAR_END, encode_index

WRITTEN_BYTES = 1 << 18
"""Bytes that are joined, hashed and written together, so many that they are in the processor's cache all the while."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WrittenShard:
    """A shard that is whole, synced and under its final name. Samples lie at ``offsets``, and have ``sizes`` bytes."""

    size: int
    sha256: str
    offsets: list[int]
    sizes: list[int]


def write_shard(folder: Folder, name: str, samples: Iterable[Sequence[bytes]]) -> WrittenShard:
    """Writes ``NAME`` and ``NAME.idx`` into a folder, one sample in memory at a time.

    The index appears before the tar: a tar under its final name is never without one. It is what Megatron Energon's
    ``prepare`` writes for the tar: the last offset is where the last sample ends, before the two zero blocks.

    Args:
        folder: where.
        name: of the tar.
        samples: the members of each as tar bytes, in parts.
    """
    offsets = [0]
    with folder.writer(name) as sink:
        tar = HashingSink(sink)
        for sample in samples:
            for part in _joined(sample):
                tar.write(part)
            offsets.append(tar.size)
            del sample  # the next pack's crops are decoded now
        tar.write(TAR_END)
        folder.write(f"{name}.idx", encode_index(np.array(offsets, np.uint64)))
    sizes = np.diff(offsets).tolist()
    return WrittenShard(size=tar.size, sha256=tar.hash.hexdigest(), offsets=offsets[:-1], sizes=sizes)


def _joined(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in pieces of :data:`WRITTEN_BYTES` at least, but for the last."""
    waiting, size = list[bytes](), 0
    for part in parts:
        waiting.append(part)
        size += len(part)
        if size >= WRITTEN_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
    if waiting:
        yield b"".join(waiting)
