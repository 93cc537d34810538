"""Probing and decoding of media in a process of their own: a file that breaks a decoder is only a rejected document.

Decoders are large C libraries, and nobody has looked at the files beforehand. Text is never sent there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, TypeVar

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media.ahead import AHEAD
from preshard.packer_service.ingest.media.crops import encoded_crops
from preshard.packer_service.ingest.media.image import probe_frames, probe_image
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.shape import MediumShape, PlacedMedium
from preshard.packer_service.ingest.media.shared import Picture, encoded_pictures
from preshard.packer_service.ingest.media.video import probe_video
from preshard.packer_service.isolation.isolated import Isolated
from preshard.packer_service.isolation.limits import Limits
from preshard.packer_service.isolation.process import CallFailedError
from preshard.packer_service.packs.crop import Crop
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError

T = TypeVar("T")

_DECODER = Isolated(Limits())
"""The packing process's only one; the first image or video starts its process."""


def probe(medium: Medium, base: MediaReach, config: PackConfig) -> MediumShape:
    """An image's size, or which frames of a video are taken; no pixel is decoded.

    Raises:
        DocumentError: as in :func:`preshard.packer_service.ingest.media.image.probe_image` and
            :func:`preshard.packer_service.ingest.media.video.probe_video`; also ``bad_image`` or ``bad_video`` when it
            broke the decoder in every try.
        OSError: the file system failed, or the decoder's process was ended from outside; no document is at fault.
    """
    medium = AHEAD.take(medium, base)
    if medium.kind == "video":
        options: dict[str, Any] = {
            "fps": config.video.fps if medium.fps is None else medium.fps,
            "max_frames": config.video.max_frames if medium.max_frames is None else medium.max_frames,
        }
        if medium.frames:
            [shape] = _call("bad_video", probe_frames, medium, base, **options, full_size=config.model is not None)
        else:
            [shape] = _call("bad_video", probe_video, medium, base, **options)
    else:
        [shape] = _call("bad_image", probe_image, medium, base, full_size=config.model is not None)
    return shape


def crops(
    medium: Medium, base: MediaReach, placed: PlacedMedium, config: PackConfig, *, doc_id: str, first_unit: int
) -> list[Crop]:
    """The crops of an image or video as a shard stores them, of the units that are wanted.

    Raises:
        DocumentError: as in :func:`~preshard.packer_service.ingest.media.crops.encoded_crops`; also ``decode_failed``
            when it broke the decoder in every try.
        OSError: as in :func:`probe`.
    """
    return _call(
        "decode_failed",
        encoded_crops,
        AHEAD.take(medium, base),
        base,
        placed,
        doc_id=doc_id,
        first_unit=first_unit,
        image_format=config.image_format,
        jpeg_quality=config.jpeg_quality,
    )


def pictures(
    keep: Callable[[Iterator[tuple[Picture, bytes]]], T],
    medium: Medium,
    base: MediaReach,
    shown: Collection[Picture],
    config: PackConfig,
) -> T:
    """What ``keep`` makes of the pictures that clips of a video show, given to it one at a time.

    Raises:
        DocumentError: as in :func:`~preshard.packer_service.ingest.media.shared.encoded_pictures` and :func:`crops`.
        OSError: as in :func:`probe`, or raised by ``keep``.
    """
    options: dict[str, Any] = {"image_format": config.image_format, "jpeg_quality": config.jpeg_quality}
    return _gather(keep, "decode_failed", encoded_pictures, medium, base, list(shown), **options)


def _call(code: str, function: Callable[..., Any], medium: Medium, *args: Any, **options: Any) -> list[Any]:
    return _gather(list, code, function, medium, *args, **options)


def _gather(
    keep: Callable[[Iterator[Any]], T],
    code: str,
    function: Callable[..., Any],
    medium: Medium,
    *args: Any,
    **options: Any,
) -> T:
    try:
        return _DECODER.gather(keep, function, medium, *args, **options)
    except CallFailedError as error:
        raise DocumentError(code, f"{medium.label}: the decoder {error}") from None
