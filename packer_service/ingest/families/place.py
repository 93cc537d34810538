"""A probed image or video to its placement in a document, within limits of its own if the row names some."""

from __future__ import annotations

from dataclasses import replace

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.families.family import Family
from preshard.packer_service.ingest.families.qwen import QwenFamily
from preshard.packer_service.ingest.families.qwen_sizes import PixelLimits
from preshard.packer_service.ingest.media.shape import ImageSize, MediumShape, PlacedMedium
from preshard.schemas.errors import DocumentError


def place(family: Family, medium: Medium, shape: MediumShape) -> PlacedMedium:
    """What a family makes of an image or video, from what its probe found.

    Raises:
        DocumentError: the family's processor refuses it; the message names the image or video.
    """
    try:
        family = _within(family, medium)
        if isinstance(shape, ImageSize):
            placement = family.image(shape.width, shape.height)
        else:
            placement = family.video(shape.width, shape.height, shape.timestamps.tolist())
    except DocumentError as error:
        raise DocumentError(error.code, f"{medium.label}: {error}") from None
    return PlacedMedium.of(shape, placement)


def _within(family: Family, medium: Medium) -> Family:
    """The family with the limits of pixels that the row gives this image or video, as its processor would follow them.

    Raises:
        DocumentError: ``bad_row``: its processor has no such limits.
    """
    given = {name: value for name in ("min_pixels", "max_pixels") if (value := getattr(medium, name)) is not None}
    if not given:
        return family
    if not isinstance(family, QwenFamily):
        reason = "is followed only for the Qwen-VL models; leave it out"
    elif medium.kind == "video" and not family.limits_frames:
        reason = f"of a video is not followed for {family.model_type}, whose processor limits all frames together"
        reason += "; leave it out, or set size in the model folder's video processor"
    else:
        geometry, is_image = family.geometry, medium.kind == "image"
        own = geometry.images if is_image else geometry.videos
        limits = PixelLimits(least=medium.min_pixels or own.least, most=medium.max_pixels or own.most)
        return replace(
            family, geometry=replace(geometry, images=limits) if is_image else replace(geometry, videos=limits)
        )
    raise DocumentError("bad_row", f"{next(iter(given))} {reason}")
