"""A media's crops as the bytes that a shard stores."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from packer_service.ingest.document import Media
from packer_service.ingest.media.image import ImageCrops, decode_image, encode_image
from packer_service.ingest.media.shape import MediaShape
from packer_service.ingest.media.video import decode_video


class EncodedCrop(NamedTuple):
    """A crop's size in pixels, and its bytes."""

    width: int
    height: int
    data: bytes


def encoded_crops(
    media: Media,
    base: str,
    shape: MediaShape,
    *,
    image_size: int,
    image_format: Literal["jpeg", "png"],
    jpeg_quality: int,
) -> Iterator[EncodedCrop]:
    """Decodes a media once and encodes its crops, one at a time.

    Args:
        media: the image or video that was probed.
        base: URI or path of the folder that holds the row's file.
        shape: what the probe chose, or some of a video's frames.
        image_size: side of a crop in pixels.
        image_format: as of :func:`packer_service.ingest.media.image.encode_image`.
        jpeg_quality: as of the same.

    Yields:
        An image's tiles in reading order and then its thumbnail, or a video's frames by time.

    Raises:
        DocumentError: as of :func:`packer_service.ingest.media.image.decode_image` and
            :func:`packer_service.ingest.media.video.decode_video`.
    """
    if isinstance(shape, ImageCrops):
        images = iter(decode_image(media, base, shape, image_size=image_size))
    else:
        images = decode_video(media, base, shape, image_size=image_size)
    for image in images:
        data = encode_image(image, image_format=image_format, jpeg_quality=jpeg_quality)
        yield EncodedCrop(image.width, image.height, data)
