"""The crops of one image or video, encoded as a shard stores them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import numpy as np
from PIL import Image

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media.image import decode_image, encode_image
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.shape import ImageSize, PlacedMedium
from preshard.packer_service.ingest.media.video import decode_video
from preshard.packer_service.packs.crop import Crop


def encoded_crops(
    medium: Medium,
    base: MediaReach,
    placed: PlacedMedium,
    *,
    doc_id: str,
    first_unit: int,
    image_format: Literal["jpeg", "png"],
    jpeg_quality: int,
    dpi: int = 144,
) -> Iterator[Crop]:
    """Decodes an image or video once and encodes its crops, one at a time.

    Args:
        medium: the image or video that was probed.
        base: what it is relative to, and what it may reach.
        placed: what its family makes of it, or some of its units.
        doc_id: the document that shows it.
        first_unit: number in the pack of the first of these units.
        image_format: see :func:`preshard.packer_service.ingest.media.image.encode_image`.
        jpeg_quality: see there.
        dpi: pixels per inch of a PDF's pages.

    Yields:
        An image's crops in the order that its family gives them, or a video's frames by time.

    Raises:
        DocumentError: as in :func:`preshard.packer_service.ingest.media.image.decode_image` and
            :func:`preshard.packer_service.ingest.media.video.decode_video`.
    """
    for unit, timestamp, image in _decoded(medium, base, placed, dpi):
        yield Crop(
            doc_id=doc_id,
            unit=first_unit + unit,
            width=image.width,
            height=image.height,
            timestamp=timestamp,
            data=encode_image(image, image_format=image_format, jpeg_quality=jpeg_quality),
        )


def _decoded(
    medium: Medium, base: MediaReach, placed: PlacedMedium, dpi: int
) -> Iterator[tuple[int, float | None, Image.Image]]:
    """Unit among those that are wanted, time, and pixels of each crop."""
    shape, scaling = placed.shape, placed.placement.scaling
    units, crops = zip(*placed.crops(), strict=True)
    if isinstance(shape, ImageSize):
        images = decode_image(medium, base, crops, scaling, dpi=dpi)
        yield from ((unit, None, image) for unit, image in zip(units, images, strict=True))
        return
    frames = shape.of_frames(np.array([crop.frame for crop in crops]))
    pictures: Iterator[Image.Image]
    if medium.frames:
        wanted = (medium.frames[number] for number in frames.pts.tolist())
        pictures = (decode_image(frame, base, crops[:1], scaling, dpi=dpi)[0] for frame in wanted)
    else:
        pictures = decode_video(medium, base, frames, size=crops[0].size, scaling=scaling)
    for unit, timestamp, picture in zip(units, frames.timestamps, pictures, strict=True):
        yield unit, float(timestamp), picture
