"""CRC-32C (Castagnoli) of a sample's members: what a reader checks of the bytes that it reads anyway."""

from __future__ import annotations

from schemas.errors import MemberChanged

POLYNOMIAL = 0x82F63B78
"""Of RFC 3720, bits reversed."""


def _table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (POLYNOMIAL if byte & 1 else 0)  # noqa: PLW2901
        table.append(byte)
    return table


_TABLE = _table()


def plain_crc32c(data: bytes) -> int:
    """The CRC-32C of some bytes in plain Python: 1 MB takes a quarter of a second."""
    state = 0xFFFFFFFF
    for byte in data:
        state = state >> 8 ^ _TABLE[(state ^ byte) & 0xFF]
    return state ^ 0xFFFFFFFF


try:
    from google_crc32c import value as _value  # type: ignore[import-not-found,unused-ignore]
except ImportError:  # no wheel for the machine: the same numbers, hundreds of times slower
    _value = plain_crc32c


def crc32c(data: bytes) -> int:
    """The CRC-32C of some bytes, as in iSCSI (RFC 3720) and object stores. 1 GB takes about half a second."""
    return int(_value(data))


def check_member(data: bytes, stored: int, where: str) -> None:
    """Checks a member's content against its stored checksum.

    Raises:
        MemberChanged: they differ.
    """
    found = crc32c(data)
    if found != stored:
        raise MemberChanged(where, f"has the CRC-32C {found}, not {stored}: its bytes were damaged after writing")
