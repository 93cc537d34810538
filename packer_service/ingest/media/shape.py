"""What probing an image or a video finds, before any pixel is decoded, and what a model makes of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.families.family import CropShape, Family, Placement
from preshard.packer_service.ingest.media.video import VideoFrames
from preshard.schemas.errors import DocumentError

if TYPE_CHECKING:
    from jaxtyping import Int64


@dataclass(frozen=True, slots=True)
class ImageSize:
    """Width and height of a still image, upright."""

    width: int
    height: int


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
        """With all of its units."""
        return cls(shape=shape, placement=placement, numbers=tuple(range(len(placement.units))))

    @property
    def n_units(self) -> int:
        return len(self.numbers)

    def of_units(self, numbers: Int64[np.ndarray, "units"]) -> PlacedMedium:
        """With some of these units, by their numbers from 0 among them, ascending."""
        return replace(self, numbers=tuple(self.numbers[number] for number in numbers))

    def crops(self) -> list[tuple[int, CropShape]]:
        """The pictures to store, in order, each with the number of its unit among those that are wanted."""
        units = (self.placement.units[number] for number in self.numbers)
        return [(place, crop) for place, unit in enumerate(units) for crop in unit.crops]


ProbedMedium = tuple[Medium, PlacedMedium]
"""An image or video with its shape and placement."""


def place(family: Family, medium: Medium, shape: MediumShape) -> PlacedMedium:
    """What a family makes of an image or video, within the limits that the row itself gives it.

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
        raise DocumentError(error.code, f"{medium.label}: {error}") from None
    return PlacedMedium.of(shape, placement)
