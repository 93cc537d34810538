"""CRC-32C (Castagnoli) of a sample's members: what a reader checks of the bytes that it reads anyway."""

from __future__ import annotations

import google_crc32c

from preshard.schemas.errors import MemberChanged


def crc32c(data: bytes) -> int:
    """The CRC-32C of some bytes, as in iSCSI (RFC 3720) and object stores. 1 GB takes about a tenth of a second."""
    return int(google_crc32c.value(data))


def check_member(data: bytes, stored: int, where: str) -> None:
    """Checks a member's content against its stored checksum.

    Raises:
        MemberChanged: they differ.
    """
    found = crc32c(data)
    if found != stored:
        raise MemberChanged(where, f"has the CRC-32C {found}, not {stored}: its bytes were damaged after writing")
