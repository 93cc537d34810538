"""A crop: one square picture as a shard stores it."""

from __future__ import annotations

from typing import NamedTuple


class Crop(NamedTuple):
    """One square picture: the document and unit it belongs to, its size in pixels, its time, and its encoded bytes.

    ``unit`` counts the units of the pack. ``timestamp`` is in seconds from the clip's start, None for a still image.
    ``crc32c`` is the checksum of the bytes where it is known. Where the crop lies in its shard is known only once it is
    written: see :class:`preshard.schemas.manifest.StoredImage`. A named tuple, since a pack has hundreds of crops.
    """

    doc_id: str
    unit: int
    width: int
    height: int
    timestamp: float | None
    data: bytes
    crc32c: int | None = None
