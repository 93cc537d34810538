"""The crops of one image or video, encoded as a shard stores them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from PIL import Image

from packer_service.ingest.document import Medium
from packer_service.ingest.media.grid import ImageGrid
from packer_service.ingest.media.image import decode_image, encode_image
from packer_service.ingest.media.shape import MediumShape
from packer_service.ingest.media.video import decode_video
from packer_service.packs.crop import Crop


def encoded_crops(
    medium: Medium,
    base: str,
    shape: MediumShape,
    *,
    doc_id: str,
    first_unit: int,
    image_size: int,
    image_format: Literal["jpeg", "png"],
    jpeg_quality: int,
) -> Iterator[Crop]:
    """Decodes an image or video once and encodes its crops, one at a time.

    Args:
        medium: the image or video that was probed.
        base: URI or path of the folder that holds the row's file.
        shape: what the probe chose, or some of a video's frames.
        doc_id: the document that shows it.
        first_unit: number of the medium's first unit in the pack; a frame is a unit, and so is a still image.
        image_size: side of a crop in pixels.
        image_format: see :func:`packer_service.ingest.media.image.encode_image`.
        jpeg_quality: see there.

    Yields:
        An image's tiles in reading order and then its thumbnail, or a video's frames by time.

    Raises:
        DocumentError: as in :func:`packer_service.ingest.media.image.decode_image` and
            :func:`packer_service.ingest.media.video.decode_video`.
    """
    for unit, timestamp, image in _decoded(medium, base, shape, image_size):
        yield Crop(
            doc_id=doc_id,
            unit=first_unit + unit,
            width=image.width,
            height=image.height,
            timestamp=timestamp,
            data=encode_image(image, image_format=image_format, jpeg_quality=jpeg_quality),
        )


def _decoded(
    medium: Medium, base: str, shape: MediumShape, image_size: int
) -> Iterator[tuple[int, float | None, Image.Image]]:
    """Unit within the medium, time, and pixels of each crop."""
    if isinstance(shape, ImageGrid):
        yield from ((0, None, image) for image in decode_image(medium, base, shape, image_size=image_size))
    else:
        frames = decode_video(medium, base, shape, image_size=image_size)
        yield from ((i, float(shape.timestamps[i]), image) for i, image in enumerate(frames))
