"""A shard read once from front to back: hashed, and taken apart into samples, past broken places where it can be."""

from __future__ import annotations

import hashlib
import tarfile
from bisect import bisect_right
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from preshard.packer_service.verify.verdict import Finding
from preshard.schemas.encode import TAR_END, tar_header
from preshard.schemas.errors import ShardInvalid
from preshard.schemas.members import TAR_BLOCK

_PIECE = 1 << 20

LARGEST_MEMBER = 512 << 20
"""Bytes of a member that are read: many times those of the longest pack's arrays, or of a picture."""

LONGEST_GAP = 1 << 30
"""Bytes of a broken tar that are read to find out how it goes on. A file may claim terabytes, and hold none of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """A file in a tar; ``offset`` is its header's."""

    name: str
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        """The end of its last block."""
        return self.offset + TAR_BLOCK + -(-len(self.data) // TAR_BLOCK) * TAR_BLOCK


@dataclass(frozen=True, kw_only=True, slots=True)
class RawSample:
    """Consecutive members with one key, as webdataset groups them: the key ends at the first dot."""

    key: str
    members: list[Member]

    @property
    def offset(self) -> int:
        return self.members[0].offset

    @property
    def end(self) -> int:
        return self.members[-1].end


@dataclass(kw_only=True)
class TarScan:
    """Reads a tar once. After :meth:`samples` is exhausted, ``findings`` holds what is wrong with the tar itself.

    ``is_whole`` says whether all of it was read, and so hashed: a broken one is left where it has too long a gap.

    Args:
        file: the opened tar.
        size: its size in bytes.
        resume: offsets at which samples should begin: after a broken header, reading continues at the next one.
    """

    file: Any
    size: int
    resume: Sequence[int]
    findings: list[Finding] = field(default_factory=list)
    broken: bool = False
    position: int = 0
    hash: Any = field(default_factory=hashlib.sha256)

    def samples(self) -> Iterator[RawSample]:
        """The whole samples of the tar, one in memory at a time. A sample that a broken place cuts is left out."""
        members: list[Member] = []
        for member in self._members():
            if members and (member is None or _key(member) != _key(members[0])):
                if member is not None or members[-1].end in self.resume:
                    yield RawSample(key=_key(members[0]), members=members)
                members = []
            if member is not None:
                members.append(member)
        if members:
            yield RawSample(key=_key(members[0]), members=members)
        while self.is_whole and self._read(_PIECE):
            pass

    @property
    def is_whole(self) -> bool:
        return not self.broken or self.size - self.position <= LONGEST_GAP

    def _members(self) -> Iterator[Member | None]:
        """Members in order; None where the tar is broken. Then they continue at the next sample, if there is one."""
        while True:
            start = self.position
            header = self._read(TAR_BLOCK)
            if header == bytes(TAR_BLOCK):
                if header + self._read(TAR_BLOCK) == TAR_END and self.position == self.size:
                    return
                wrong = f"zero blocks at {start} do not end it: it has {self.size} bytes"
            elif header:
                wrong = yield from self._member(start, header)
            else:
                wrong = f"ends at {start} without two zero blocks"
            if wrong:
                self.broken = True
                self.findings.append((ShardInvalid, wrong))
                yield None
                if not self._resume():
                    return

    def _member(self, start: int, header: bytes) -> Generator[Member, None, str]:
        """Yields the member at ``start``, or returns what is wrong with it."""
        try:
            name, size = _parse_header(header)
        except ValueError as error:
            return f"the header at {start} {error}"
        blocks = -(-size // TAR_BLOCK) * TAR_BLOCK
        if blocks > self.size - self.position:
            return f"{name} at {start} has {size} bytes, past the tar's end at {self.size}"
        if size > LARGEST_MEMBER:
            return f"{name} at {start} has {size} bytes; a member has at most {LARGEST_MEMBER}"
        data = self._read(blocks)
        if any(data[size:]):
            self.findings.append((ShardInvalid, f"{name} at {start} is not filled up with zeros"))
        yield Member(name=name, offset=start, data=data[:size])
        return ""

    def _resume(self) -> bool:
        """Skips to the next place where a sample should begin."""
        later = bisect_right(self.resume, self.position - 1)
        if later == len(self.resume) or self.resume[later] >= min(self.size, self.position + LONGEST_GAP):
            return False
        while self.position < self.resume[later] and self._read(min(_PIECE, self.resume[later] - self.position)):
            pass
        return True

    def _read(self, size: int) -> bytes:
        data: bytes = self.file.read(size)
        self.hash.update(data)
        self.position += len(data)
        return data


def _key(member: Member) -> str:
    return member.name.partition(".")[0]


def _parse_header(block: bytes) -> tuple[str, int]:
    """Name and size of a member.

    Raises:
        ValueError: it is not, byte for byte, the header that the format prescribes for its name and size.
    """
    try:
        info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        prescribed = tar_header(info.name, info.size)
    except (tarfile.TarError, ValueError) as error:
        raise ValueError(f"is not a tar header ({error})") from None
    if prescribed != block:
        at = next(i for i, (a, b) in enumerate(zip(block, prescribed, strict=True)) if a != b)
        raise ValueError(f"of {info.name!r:.120} is not the USTAR header that its name and size give, from byte {at}")
    return info.name, info.size
