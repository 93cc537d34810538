"""A rank's crops of one sample, read as one range of bytes and decoded to pixels."""

from __future__ import annotations

import io

import numpy as np
from jaxtyping import UInt8
from PIL import Image

from schemas.codec import TAR_BLOCK, image_member
from schemas.errors import ImagesInvalid, MembersInvalid
from schemas.header import read_member
from schemas.manifest import SampleHead
from trainer.data.files import DatasetFiles
from trainer.data.pack_index import PackPlace


def read_crops(
    files: DatasetFiles,
    place: PackPlace,
    head: SampleHead,
    crops: range,
    *,
    image_size: int,
    image_format: str,
) -> UInt8[np.ndarray, "crops height width 3"]:
    """Reads and decodes consecutive crops of a sample by one request, or by none if there is no crop.

    The range of bytes goes from the first crop's tar header to the last crop's last byte.

    Raises:
        ImagesInvalid: a crop does not lie where the head says, or does not decode to an RGB square of ``image_size``.
    """
    pixels = np.empty((len(crops), image_size, image_size, 3), np.uint8)
    if not crops:
        return pixels
    first, last = head.images[crops[0]], head.images[crops[-1]]
    size = last.offset + TAR_BLOCK + last.size - first.offset
    begin = place.header_size + first.offset
    if size < TAR_BLOCK or begin + size > place.size:
        raise ImagesInvalid(place.where, f"crops {crops[0]} to {crops[-1]} lie at byte {begin}, outside the sample")
    data = files.read_range(place.shard, place.offset + begin, size)
    for i, crop in enumerate(crops):
        stored, name = head.images[crop], image_member(place.key, crop, image_format)
        try:
            content, _ = read_member(data, stored.offset - first.offset, name, place.where)
        except MembersInvalid as error:
            raise ImagesInvalid(place.where, f"crop {crop}: {error.detail}") from None
        if len(content) != stored.size:
            raise ImagesInvalid(place.where, f"crop {crop}: {name} has {len(content)} bytes, not {stored.size}")
        pixels[i] = _decode(content, image_size, f"{place.where}, {name}")
    return pixels


def _decode(content: bytes, image_size: int, where: str) -> UInt8[np.ndarray, "height width 3"]:
    try:
        with Image.open(io.BytesIO(content), formats=("JPEG", "PNG")) as image:
            pixels = np.asarray(image)
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise ImagesInvalid(where, f"does not decode ({error})") from None
    if pixels.shape != (image_size, image_size, 3) or pixels.dtype != np.uint8:
        raise ImagesInvalid(where, f"decodes to {pixels.dtype}{pixels.shape}, not {image_size} x {image_size} RGB")
    return pixels
