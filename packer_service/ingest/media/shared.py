"""The pictures that several clips of one video show, decoded together, and encoded once however many show them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np
from cachetools import LRUCache

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.families.family import Scaling
from preshard.packer_service.ingest.media.image import encode_image
from preshard.packer_service.ingest.media.open import open_media
from preshard.packer_service.ingest.media.passes import read_pictures
from preshard.packer_service.ingest.media.pictures import LostPictureError
from preshard.packer_service.ingest.media.pixels import FrameScaler
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.shape import PlacedMedium
from preshard.packer_service.ingest.media.video import VideoFrames
from preshard.schemas.errors import DocumentError

MAX_SCALERS = 8
"""Most sizes for which FFmpeg's tables are kept, at a megabyte or so each. Clips of a video seldom have as many."""


class Picture(NamedTuple):
    """A picture as a clip shows it: the tick of its frame, its width and height, and how it gets there."""

    tick: int
    size: tuple[int, int]
    scaling: Scaling


class ShownPicture(NamedTuple):
    """A picture of a clip, its unit among those of the clip that are wanted, and its time."""

    picture: Picture
    unit: int
    timestamp: float


def shown_pictures(placed: PlacedMedium) -> list[ShownPicture]:
    """The pictures of a clip in the order in which their crops are stored."""
    assert isinstance(placed.shape, VideoFrames)
    units, crops = zip(*placed.crops(), strict=True)
    frames = placed.shape.of_frames(np.array([crop.frame for crop in crops]))
    size, scaling = crops[0].size, placed.placement.scaling
    return [
        ShownPicture(Picture(tick, size, scaling), unit, timestamp)
        for tick, unit, timestamp in zip(frames.pts.tolist(), units, frames.timestamps.tolist(), strict=True)
    ]


def encoded_pictures(
    medium: Medium,
    base: MediaReach,
    pictures: Iterable[Picture],
    *,
    image_format: Literal["jpeg", "png"],
    jpeg_quality: int,
) -> Iterator[tuple[Picture, bytes]]:
    """Decodes every frame once, in order, and encodes it once for each of its sizes.

    Args:
        medium: the video, whatever clip of it.
        base: what it is relative to, and what it may reach.
        pictures: what its clips show, in any order, each once.
        image_format: see :func:`preshard.packer_service.ingest.media.image.encode_image`.
        jpeg_quality: see there.

    Yields:
        Each picture with its bytes, by tick.

    Raises:
        DocumentError: ``missing_media``, ``bad_video``, or ``decode_failed``: after the pictures before it, one cannot
            be decoded.
    """
    left = deque(list(group) for _, group in groupby(sorted(pictures), lambda picture: picture.tick))
    scalers: LRUCache[tuple[tuple[int, int], Scaling], FrameScaler] = LRUCache(MAX_SCALERS)

    def encoded(frame: Any) -> list[bytes]:  # of the frame that is shown next
        images = (_scaler(scalers, picture).image(frame) for picture in left[0])
        return [encode_image(image, image_format=image_format, jpeg_quality=jpeg_quality) for image in images]

    with open_media(medium, base) as file:
        try:
            for found in read_pictures(file, [group[0].tick for group in left], encoded):
                yield from zip(left.popleft(), found, strict=True)
        except LostPictureError as lost:
            raise DocumentError("decode_failed", f"{medium.label}: a frame cannot be decoded{lost}") from None


def _scaler(scalers: LRUCache[tuple[tuple[int, int], Scaling], FrameScaler], picture: Picture) -> FrameScaler:
    key = picture.size, picture.scaling
    if key not in scalers:
        scalers[key] = FrameScaler(*key)
    return scalers[key]
