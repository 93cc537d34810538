"""The crops of an image or video, and the pictures that several clips of one show, encoded as a shard stores them."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, Literal, NamedTuple

import numpy as np
from av.sidedata.sidedata import Type as SideData
from av.video.reformatter import Interpolation, VideoReformatter
from cachetools import LRUCache
from PIL import Image

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.families.family import Scaling
from preshard.packer_service.ingest.media.image import SWAPPING, decode_image
from preshard.packer_service.ingest.media.pictures import LostPictureError, read_pictures
from preshard.packer_service.ingest.media.reach import MediaReach, open_media
from preshard.packer_service.ingest.media.scale import scaled, turned
from preshard.packer_service.ingest.media.shape import ImageSize, PlacedMedium, VideoFrames
from preshard.packer_service.packs.crop import Crop
from preshard.schemas.errors import DocumentError

# FFmpeg's scaler takes shortcuts that differ between processors and darken the picture by more than one level of 255 on
# average, unless it is told to round accurately and to be bit-exact, which FFmpeg's own tests check on every processor.
# Scaling straight from the decoder's planes is two to eight times faster than converting the full frame so to RGB and
# leaving the scaling to Pillow. The support of the bicubic filter grows with the reduction, so nothing aliases.
# A full frame is converted with the shortcuts: `transformers` shows a model the frames that PyAV and torchcodec convert
# so, which costs a twentieth of the time, and every x86-64 processor with SSSE3 takes the same ones.
SCALING = int(
    Interpolation.BICUBIC | Interpolation.ACCURATE_RND | Interpolation.BITEXACT | Interpolation.FULL_CHR_H_INT
)

# For each quarter turn or mirroring that a display matrix can ask for (ISO/IEC 14496-12, 6.2.2), by the signs of its a,
# b, c and d: what brings a stored frame into that position.
_TURNS = {
    (-1, 0, 0, 1): Image.Transpose.FLIP_LEFT_RIGHT,
    (1, 0, 0, -1): Image.Transpose.FLIP_TOP_BOTTOM,
    (-1, 0, 0, -1): Image.Transpose.ROTATE_180,
    (0, 1, -1, 0): Image.Transpose.ROTATE_270,
    (0, -1, 1, 0): Image.Transpose.ROTATE_90,
    (0, 1, 1, 0): Image.Transpose.TRANSPOSE,
    (0, -1, -1, 0): Image.Transpose.TRANSVERSE,
}

MAX_SCALERS = 8
"""Most sizes for which FFmpeg's tables are kept, at a megabyte or so each. Clips of a video seldom have as many."""


class FrameScaler:
    """Scales the frames of one video, and keeps FFmpeg's tables from frame to frame.

    Args:
        size: width and height of the pictures, upright.
        scaling: ``reduced`` scales on the way from the decoder's planes to RGB, the others from the full RGB frame.
    """

    def __init__(self, size: tuple[int, int], scaling: Scaling = "reduced") -> None:
        self.size = size
        self.scaling = scaling
        self._reformatter = VideoReformatter()

    def image(self, frame: Any) -> Image.Image:
        """Scales a whole ``av.VideoFrame`` to an RGB image, upright as the file's display matrix says.

        The aspect ratio is not kept, as in SigLIP's preprocessing. Colours follow the matrix and range that the video
        names (BT.601 and limited range where it names none). High bit depths are rounded to 8 bits without tone
        mapping, and an alpha plane is dropped.
        """
        turn = _turn(frame)
        if self.scaling != "reduced":
            return scaled(turned(self._rgb(frame, (frame.width, frame.height)), turn), self.size, self.scaling)
        stored = self.size[::-1] if turn in SWAPPING else self.size
        return turned(self._rgb(frame, stored, SCALING), turn)

    def _rgb(self, frame: Any, size: tuple[int, int], interpolation: int | None = None) -> Image.Image:
        width, height = size
        picture = self._reformatter.reformat(
            frame, width=width, height=height, format="rgb24", interpolation=interpolation, threads=1
        )
        plane = picture.planes[0]
        return Image.frombytes("RGB", size, bytes(plane), "raw", "RGB", plane.line_size, 1)


def _turn(frame: Any) -> Image.Transpose | None:
    matrix = frame.side_data.get(SideData.DISPLAYMATRIX)
    if matrix is None:
        return None
    a, b, c, d = (int(np.sign(value)) for value in np.frombuffer(matrix, "<i4")[[0, 1, 3, 4]])
    return _TURNS.get((a, b, c, d))


def decode_video(
    medium: Medium, base: MediaReach, frames: VideoFrames, *, size: tuple[int, int], scaling: Scaling = "reduced"
) -> Iterator[Image.Image]:
    """Decodes the chosen frames once, in order, each as an RGB image of one size.

    On the way to each, :func:`~preshard.packer_service.ingest.media.pictures.read_pictures` decodes only what it must.

    Args:
        medium: the video that was probed.
        base: what it is relative to, and what it may reach.
        frames: what :func:`probe_video` chose.
        size: width and height of the images; the whole frame is scaled, upright, without keeping its aspect ratio.
        scaling: how; ``reduced`` is FFmpeg's bicubic filter, straight from the decoder's planes.

    Yields:
        Exactly ``frames.n_frames`` images, in the order of ``frames.pts``.

    Raises:
        DocumentError: ``missing_media``, ``bad_video`` as in the probe, or ``decode_failed``: the decoder stopped, or
            did not return a frame that the packets promise.
    """
    scaler, done = FrameScaler(size, scaling), 0
    with open_media(medium, base) as file:
        try:
            for image in read_pictures(file, frames.pts.tolist(), scaler.image):
                yield image
                done += 1
        except LostPictureError as lost:
            which = f"frame {done} of {frames.n_frames} ({frames.timestamps[done]:.3f} s into the clip)"
            raise DocumentError("decode_failed", f"{medium.label}: {which} cannot be decoded{lost}") from None


def encode_image(image: Image.Image, *, image_format: Literal["jpeg", "png"], jpeg_quality: int) -> bytes:
    """The bytes that a shard stores for a crop: always the same for the same pixels, without metadata.

    Args:
        image: an RGB crop.
        image_format: ``jpeg`` (chroma at half resolution, Pillow's default) or ``png``, which loses nothing.
        jpeg_quality: 1 to 100; not used for PNG.
    """
    out = io.BytesIO()
    # Pillow copies a photograph's comments and profiles to everything that is cut from it.
    image = image.copy()
    image.info = {}
    if image_format == "jpeg":
        image.save(out, "JPEG", quality=jpeg_quality)
    else:
        image.save(out, "PNG")
    return out.getvalue()


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
        image_format: see :func:`preshard.packer_service.ingest.media.crops.encode_image`.
        jpeg_quality: see there.
        dpi: pixels per inch of a PDF's pages.

    Yields:
        An image's crops in the order that its family gives them, or a video's frames by time.

    Raises:
        DocumentError: as in :func:`preshard.packer_service.ingest.media.image.decode_image` and
            :func:`preshard.packer_service.ingest.media.crops.decode_video`.
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
        image_format: see :func:`preshard.packer_service.ingest.media.crops.encode_image`.
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
