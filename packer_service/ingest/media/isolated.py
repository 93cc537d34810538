"""Probing and decoding of media in a process of their own: a file that breaks a decoder is a rejected document.

Decoders are large C libraries, and the files were looked at by nobody. Text never comes here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from packer_service.ingest.document import Media
from packer_service.ingest.media.crops import EncodedCrop, encoded_crops
from packer_service.ingest.media.image import probe_image
from packer_service.ingest.media.shape import MediaShape
from packer_service.ingest.media.video import probe_video
from packer_service.isolation.isolated import Isolated
from packer_service.isolation.limits import Limits
from packer_service.isolation.process import CallFailedError
from schemas.config import PackConfig
from schemas.errors import DocumentError

_DECODER = Isolated(Limits())
"""One for the packing process; a process is started by the first media."""


def probe(media: Media, base: str, config: PackConfig) -> MediaShape:
    """How many crops an image has, or which frames a video; no pixel is decoded.

    Raises:
        DocumentError: as of :func:`packer_service.ingest.media.image.probe_image` and
            :func:`packer_service.ingest.media.video.probe_video`; ``bad_image`` or ``bad_video`` too when it broke the
            decoder in every try.
        OSError: the file system failed, or the decoder's process was ended from outside: no document's fault.
    """
    if media.kind == "video":
        options: dict[str, Any] = {"fps": config.video.fps, "max_frames": config.video.max_frames}
        [shape] = _call("bad_video", probe_video, media, base, **options)
    else:
        options = {"image_size": config.vision.image_size, "max_crops": config.vision.max_crops}
        [shape] = _call("bad_image", probe_image, media, base, **options)
    return shape


def crops(media: Media, base: str, shape: MediaShape, config: PackConfig) -> list[EncodedCrop]:
    """A media's crops as the bytes that a shard stores, of a video only the frames of ``shape``.

    Raises:
        DocumentError: as of :func:`~packer_service.ingest.media.crops.encoded_crops`; ``decode_failed`` too when it
            broke the decoder in every try.
        OSError: as of :func:`probe`.
    """
    return _call(
        "decode_failed",
        encoded_crops,
        media,
        base,
        shape,
        image_size=config.vision.image_size,
        image_format=config.image_format,
        jpeg_quality=config.jpeg_quality,
    )


def _call(code: str, function: Callable[..., Any], media: Media, *args: Any, **options: Any) -> list[Any]:
    try:
        return _DECODER.call(function, media, *args, **options)
    except CallFailedError as error:
        raise DocumentError(code, f"{media.label}: the decoder {error}") from None
