"""A rank's crops of one sample, read as one range of bytes and decoded to pixels."""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, UInt8
from PIL import Image

from preshard.schemas.checksum import check_member
from preshard.schemas.codec import TAR_BLOCK, image_member
from preshard.schemas.errors import ImagesInvalid, MembersInvalid
from preshard.schemas.header import read_member
from preshard.schemas.manifest import SampleHead, StoredImage
from preshard.trainer.data.files import DatasetFiles
from preshard.trainer.data.pack_index import PackPlace


@dataclass(frozen=True, kw_only=True, slots=True)
class Pixels:
    """Decoded crops, one after the other in a single buffer, as they need not be of one size."""

    buffer: UInt8[np.ndarray, "bytes"]
    sizes: Int64[np.ndarray, "crops 2"]
    """Height and width of each."""


def read_crops(files: DatasetFiles, place: PackPlace, head: SampleHead, crops: range, *, image_format: str) -> Pixels:
    """Reads and decodes consecutive crops of a sample by one request, or by none if there is no crop.

    The range of bytes goes from the first crop's tar header to the last crop's last byte.

    Raises:
        ImagesInvalid: a crop does not lie where the head says, or does not decode to RGB of its size.
        MemberChanged: a crop has other bytes than were written.
    """
    sizes = np.array([(head.images[crop].height, head.images[crop].width) for crop in crops], np.int64).reshape(-1, 2)
    ends = np.cumsum(3 * sizes.prod(axis=1))
    buffer = np.empty(int(ends[-1]) if len(crops) else 0, np.uint8)
    if not crops:
        return Pixels(buffer=buffer, sizes=sizes)
    first, last = head.images[crops[0]], head.images[crops[-1]]
    size = last.offset + TAR_BLOCK + last.size - first.offset
    begin = place.header_size + first.offset
    if size < TAR_BLOCK or begin + size > place.size:
        raise ImagesInvalid(place.where, f"crops {crops[0]} to {crops[-1]} lie at byte {begin}, outside the sample")
    data = files.read_range(place.shard, place.offset + begin, size)
    for i, crop in enumerate(crops):
        content, where = _content(data, first.offset, place, head.images[crop], crop, image_format)
        height, width = sizes[i].tolist()
        buffer[ends[i] - 3 * height * width : ends[i]] = _decode(content, height, width, where).reshape(-1)
    return Pixels(buffer=buffer, sizes=sizes)


def _content(
    data: bytes, begin: int, place: PackPlace, stored: StoredImage, crop: int, image_format: str
) -> tuple[bytes, str]:
    """A crop's bytes in a range that begins at ``begin``, and how errors name it."""
    name = image_member(place.key, crop, image_format)
    try:
        content, _ = read_member(data, stored.offset - begin, name, place.where)
    except MembersInvalid as error:
        raise ImagesInvalid(place.where, f"crop {crop}: {error.detail}") from None
    if len(content) != stored.size:
        raise ImagesInvalid(place.where, f"crop {crop}: {name} has {len(content)} bytes, not {stored.size}")
    where = f"{place.where}, {name}"
    check_member(content, stored.crc32c, where)
    return content, where


def _decode(content: bytes, height: int, width: int, where: str) -> UInt8[np.ndarray, "height width 3"]:
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            pixels = np.asarray(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImagesInvalid(where, f"does not decode ({error})") from None
    if pixels.shape != (height, width, 3) or pixels.dtype != np.uint8:
        raise ImagesInvalid(where, f"decodes to {pixels.dtype}{pixels.shape}, not RGB of {width} x {height}")
    return pixels
