"""The header part of a sample, which every rank reads: the one reader for the trainer and the service."""

from __future__ import annotations

import tarfile
from dataclasses import dataclass

from preshard.schemas.codec import (
    HEAD,
    HEADER_MEMBERS,
    LAYOUTS,
    SEQUENCE,
    TAR_BLOCK,
    check_member,
    decode_head,
    decode_layouts,
    decode_sequence,
    sample_key,
)
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import MembersInvalid, PackRowInvalid, SampleHeadInvalid
from preshard.schemas.layout import TokenLayout
from preshard.schemas.manifest import SampleHead
from preshard.schemas.sequence import PackedSequence


@dataclass(frozen=True, kw_only=True, slots=True)
class SampleHeader:
    """What the header part of a sample holds: everything but the crops."""

    head: SampleHead
    sequence: PackedSequence
    layouts: dict[str, TokenLayout]


def decode_header(
    data: bytes, pack_id: int, head_crc32c: int, config: PackConfig, *, axes: int, where: str
) -> SampleHeader:
    """Decodes a header part: its three members, one after the other, with nothing behind them.

    Args:
        data: bytes of the shard from the sample's first tar header to its first crop's.
        pack_id: the pack that should lie there.
        head_crc32c: checksum of the head, from ``packs.parquet``; the head has those of the other members.
        config: the dataset's configuration.
        axes: axes of ``position_ids``.
        where: how errors name the sample.

    Raises:
        MembersInvalid: other members than the head, the sequence and the layouts, under the pack's key.
        MemberChanged: a member has other bytes than were written.
        SampleHeadInvalid, SequenceInvalid, ColumnsInvalid, LayoutsInvalid: a member is not what the format says.
        PackRowInvalid: the head is of another pack.
    """
    members, at = {}, 0
    for extension in HEADER_MEMBERS:
        members[extension], at = read_member(data, at, f"{sample_key(pack_id)}.{extension}", where)
    if at != len(data):
        raise MembersInvalid(where, f"header part ends after {at} bytes, not {len(data)}")
    check_member(members[HEAD], head_crc32c, f"{where}.{HEAD}")
    head = decode_head(members[HEAD], f"{where}.{HEAD}")
    for extension in (SEQUENCE, LAYOUTS):
        check_member(members[extension], stored_checksum(head, extension, where), f"{where}.{extension}")
    if head.pack_id != pack_id:
        raise PackRowInvalid(where, f"holds pack {head.pack_id}, not {pack_id}")
    return SampleHeader(
        head=head,
        sequence=decode_sequence(
            members[SEQUENCE], config.seq_len, f"{where}.{SEQUENCE}", axes=axes, columns=config.columns_of_tokens
        ),
        layouts=decode_layouts(members[LAYOUTS], config.seq_len, config.block_size, f"{where}.{LAYOUTS}"),
    )


def stored_checksum(head: SampleHead, extension: str, where: str) -> int:
    """The checksum that a head has of another member of the header part.

    Raises:
        SampleHeadInvalid: it has none.
    """
    if extension not in head.crc32c:
        raise SampleHeadInvalid(f"{where}.{HEAD}", f"crc32c has no {extension}; it has {', '.join(head.crc32c)}")
    return head.crc32c[extension]


def read_member(data: bytes, at: int, name: str, where: str) -> tuple[bytes, int]:
    """Content of the tar member that begins at a byte, and where the next one begins.

    Raises:
        MembersInvalid: no header there, of another name, or it reaches past the end.
    """
    try:
        info = tarfile.TarInfo.frombuf(data[at : at + TAR_BLOCK], "utf-8", "strict")
    except (tarfile.HeaderError, UnicodeDecodeError) as error:
        raise MembersInvalid(where, f"byte {at}: no tar header of {name} ({error})") from None
    begin = at + TAR_BLOCK
    if info.name != name or begin + info.size > len(data):
        raise MembersInvalid(where, f"byte {at}: {info.name} of {info.size} bytes, not a whole {name}")
    return data[begin : begin + info.size], begin + -(-info.size // TAR_BLOCK) * TAR_BLOCK
