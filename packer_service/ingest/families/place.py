"""A probed image or video to its placement in a document."""

from __future__ import annotations

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.families.family import Family
from preshard.packer_service.ingest.media.shape import ImageSize, MediumShape, PlacedMedium
from preshard.schemas.errors import DocumentError


def place(family: Family, medium: Medium, shape: MediumShape) -> PlacedMedium:
    """What a family makes of an image or video, from what its probe found.

    Raises:
        DocumentError: the family's processor refuses it; the message names the image or video.
    """
    try:
        if isinstance(shape, ImageSize):
            placement = family.image(shape.width, shape.height)
        else:
            placement = family.video(shape.width, shape.height, shape.timestamps.tolist())
    except DocumentError as error:
        raise DocumentError(error.code, f"{medium.label}: {error}") from None
    return PlacedMedium.of(shape, placement)
