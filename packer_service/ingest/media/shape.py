"""Shape of an image or a video as probing finds it, before any pixel is decoded, and what a model makes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.families.family import CropShape, Family, Placement
from preshard.schemas.errors import DocumentError

if TYPE_CHECKING:
    from jaxtyping import Float64, Int64

MIB = 1 << 20

DECODER_MIB = 512
"""The default of ``decoder_mib`` in the configuration."""

BASE_BYTES = 128 * MIB
"""Memory of the decoder's process besides pixels: the interpreter and the libraries."""

# Bytes per pixel while an image is decoded, as measured. JPEG is decoded at a fraction of its size; the others hold an
# animation's canvases, whole planes or strips, samples of 32 bits, or coefficients besides the picture.
_BYTES_PER_PIXEL = {
    "JPEG": 2, "progressive JPEG": 8, "PDF": 8, "TIFF": 10, "PPM": 10, "AVIF": 12, "WEBP": 16, "JPEG2000": 25,
}  # fmt: skip

_PIXEL_BYTES = 4
"""Bytes of a pixel as Pillow keeps it, in the formats that need no more while they are decoded."""

_TURNED_BYTES = 10
"""Bytes per pixel where a picture at full size is turned, as EXIF says: it is held twice then."""

_FRAMES = {"hevc": 6, "av1": 6, "libdav1d": 6, "h264": 4}
"""Frames that a decoder holds at least, of streams with B-frames; others hold two or more."""

_FRAME_EXTRA = 0.8
"""Bytes per pixel that a held frame takes beside its samples: motion vectors, edges."""

_FULL_FRAME_BYTES = 5
"""Bytes per pixel of the RGB frame from which some families scale."""

ROUND_MIB = 256
SPARE = 1.5
"""Needs are least ones: streams may refer to more frames."""


@dataclass(frozen=True, slots=True)
class ImageSize:
    """Width and height of a still image, upright."""

    width: int
    height: int


@dataclass(frozen=True, kw_only=True, slots=True)
class VideoFrames:
    """The frames of a clip that will be stored.

    ``pts`` are in the stream's time base, ascending and distinct; ``timestamps`` are in seconds from the clip's start,
    which is ``medium.start`` or else the first frame; they are 0 for a frame that is already on the screen then.
    ``width`` and ``height`` are those of the frame as it is shown, after the header's quarter turn. ``thinned_to`` is
    the time between frames in seconds where ``max_frames`` made it longer than ``1 / fps``, else None.
    """

    pts: Int64[np.ndarray, "frames"]
    timestamps: Float64[np.ndarray, "frames"]
    width: int
    height: int
    thinned_to: float | None = None

    @property
    def n_frames(self) -> int:
        return len(self.pts)

    def of_frames(self, numbers: Int64[np.ndarray, "chosen"]) -> VideoFrames:
        """Some of its frames, by their numbers from 0, ascending."""
        return replace(self, pts=self.pts[numbers], timestamps=self.timestamps[numbers])


MediumShape = ImageSize | VideoFrames
"""A still image's size, or which frames of a video are taken and their size."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedMedium:
    """An image or video with what its family makes of it: all that decoding needs besides the file.

    ``numbers`` are those of its units that are wanted, ascending.
    """

    shape: MediumShape
    placement: Placement
    numbers: tuple[int, ...]

    @classmethod
    def of(cls, shape: MediumShape, placement: Placement) -> PlacedMedium:
        """Returns the medium with all of its units."""
        return cls(shape=shape, placement=placement, numbers=tuple(range(len(placement.units))))

    @property
    def n_units(self) -> int:
        return len(self.numbers)

    def of_units(self, numbers: Int64[np.ndarray, "units"]) -> PlacedMedium:
        """Returns the medium with some of these units, by their numbers from 0 among them, ascending."""
        return replace(self, numbers=tuple(self.numbers[number] for number in numbers))

    def crops(self) -> list[tuple[int, CropShape]]:
        """The pictures to store, in order, each with the number of its unit among those that are wanted."""
        units = (self.placement.units[number] for number in self.numbers)
        return [(place, crop) for place, unit in enumerate(units) for crop in unit.crops]


ProbedMedium = tuple[Medium, PlacedMedium]
"""An image or video with its shape and placement."""


def place(family: Family, medium: Medium, shape: MediumShape) -> PlacedMedium:
    """Places an image or video by its family, within the limits that the row itself gives it.

    Raises:
        DocumentError: the family's processor refuses it; the message names the image or video.
    """
    try:
        family = family.within(medium)
        if isinstance(shape, ImageSize):
            placement = family.image(shape.width, shape.height)
        else:
            placement = family.video(shape.width, shape.height, shape.timestamps.tolist())
    except DocumentError as error:
        # reports count rows of one reason together, whatever file is named first where it is one of media, or quoted
        named = f"{error} ({medium.label!r})" if error.code == "bad_row" else f"{medium.label}: {error}"
        raise DocumentError(error.code, named) from None
    return PlacedMedium.of(shape, placement)


def image_bytes(kind: str | None, pixels: int, *, full_size: bool, turned: bool) -> int:
    """Bytes of memory that decoding an image takes.

    Args:
        kind: its format, as Pillow names it, or ``PDF``.
        pixels: how many it has.
        full_size: whether its RGB picture is held at full size besides, and a JPEG is not decoded smaller.
        turned: whether it is stored on its side or upside down.
    """
    per_pixel = _BYTES_PER_PIXEL.get(kind or "", _PIXEL_BYTES)
    if full_size:
        per_pixel = max(max(per_pixel, _PIXEL_BYTES) + _PIXEL_BYTES, _TURNED_BYTES * turned)
    return BASE_BYTES + pixels * per_pixel


def video_bytes(codec: str, pixels: int, bits_per_pixel: int, *, full_size: bool) -> int:
    """Bytes of memory that decoding a video takes at least.

    Args:
        codec: its name in FFmpeg.
        pixels: of a frame.
        bits_per_pixel: of the decoder's frames.
        full_size: whether frames are scaled from RGB at their full size.
    """
    per_pixel = _FRAMES.get(codec, 2) * (bits_per_pixel / 8 + _FRAME_EXTRA) + _FULL_FRAME_BYTES * full_size
    return BASE_BYTES + int(pixels * per_pixel)


def check_memory(code: str, what: str, need: int, decoder_mib: int = DECODER_MIB) -> None:
    """Rejects what cannot be decoded in the memory that the configuration gives.

    Args:
        code: of the reject.
        what: the file and its size, for the message.
        need: bytes.
        decoder_mib: as in the configuration.

    Raises:
        DocumentError: it needs more.
    """
    if need > decoder_mib * MIB:
        enough = -(-int(need * SPARE) // (ROUND_MIB * MIB)) * ROUND_MIB
        raise DocumentError(
            code,
            f"{what} need about {-(-need // MIB)} MiB to decode, more than decoder_mib {decoder_mib}; "
            f"set decoder_mib to {enough}, or scale it down",
        )
