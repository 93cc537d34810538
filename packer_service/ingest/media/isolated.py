"""Probing and decoding of media in a process of their own: a file that breaks a decoder is only a rejected document.

Decoders are large C libraries, and nobody has looked at the files beforehand. Text is never sent there.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from typing import Any, TypeVar, cast

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media.crops import Picture, encoded_crops, encoded_pictures
from preshard.packer_service.ingest.media.image import image_digest, probe_image
from preshard.packer_service.ingest.media.reach import MediaReach
from preshard.packer_service.ingest.media.shape import MediumShape, PlacedMedium
from preshard.packer_service.ingest.media.stores import AHEAD, STORES
from preshard.packer_service.ingest.media.video import probe_frames, probe_video
from preshard.packer_service.packs.crop import Crop
from preshard.packer_service.runtime.workers import CallFailedError, Isolated, Limits
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import DocumentError

T = TypeVar("T")

_DECODER = Isolated(Limits())
"""The packing process's only one; the first image or video starts its process."""


def _decoder(config: PackConfig) -> Isolated:
    """The process, with the memory that the configuration gives it."""
    memory = config.decoder_mib << 20
    if (_DECODER.limits.memory, _DECODER.limits.memory_key) != (memory, "decoder_mib"):
        _DECODER.close()
        _DECODER.limits = replace(_DECODER.limits, memory=memory, memory_key="decoder_mib")
    return _DECODER


def probe(medium: Medium, base: MediaReach, config: PackConfig) -> list[MediumShape]:
    """The size of an image or of each of its pages, or which frames of a video are taken; no pixel is decoded.

    Raises:
        DocumentError: as in :func:`preshard.packer_service.ingest.media.image.probe_image` and
            :func:`preshard.packer_service.ingest.media.video.probe_video`; also ``bad_image`` or ``bad_video`` when it
            broke the decoder in every try.
            ``unreachable_media`` when a store did not give it.
        OSError: a disk failed, a store is down, or the decoder's process was ended from outside; no document is at
            fault.
    """
    medium = AHEAD.take(medium, base)
    full_size = config.model is not None or config.duplicates.images != "keep"
    options: dict[str, Any] = {"decoder_mib": config.decoder_mib, "full_size": full_size}
    if medium.kind == "video":
        options |= {
            "fps": config.video.fps if medium.fps is None else medium.fps,
            "max_frames": config.video.max_frames if medium.max_frames is None else medium.max_frames,
        }
    if medium.kind == "image" or medium.frames:
        options |= {"pages": config.images.pages, "dpi": config.images.pdf_dpi}
    if medium.kind == "video":
        probe_clip = probe_frames if medium.frames else probe_video
        return _gather(list, config, "bad_video", probe_clip, medium, base, **options)
    [shapes] = _gather(list, config, "bad_image", probe_image, medium, base, **options)
    return cast(list[MediumShape], shapes)


def pixel_digest(medium: Medium, base: MediaReach, config: PackConfig) -> bytes:
    """A hash of the pixels of an image, or of a page of one.

    Raises:
        DocumentError: ``decode_failed``, and as in :func:`probe`.
        OSError: as in :func:`probe`.
    """
    [digest] = _gather(list, config, "decode_failed", image_digest, medium, base, dpi=config.images.pdf_dpi)
    return cast(bytes, digest)


def crops(
    medium: Medium, base: MediaReach, placed: PlacedMedium, config: PackConfig, *, doc_id: str, first_unit: int
) -> list[Crop]:
    """The crops of an image or video as a shard stores them, of the units that are wanted.

    Raises:
        DocumentError: as in :func:`~preshard.packer_service.ingest.media.crops.encoded_crops`; also ``decode_failed``
            when it broke the decoder in every try.
        OSError: as in :func:`probe`.
    """
    return _gather(
        list,
        config,
        "decode_failed",
        encoded_crops,
        AHEAD.take(medium, base),
        base,
        placed,
        doc_id=doc_id,
        first_unit=first_unit,
        image_format=config.image_format,
        jpeg_quality=config.jpeg_quality,
        dpi=config.images.pdf_dpi,
    )


def pictures(
    keep: Callable[[Iterator[tuple[Picture, bytes]]], T],
    medium: Medium,
    base: MediaReach,
    shown: Collection[Picture],
    config: PackConfig,
) -> T:
    """Applies ``keep`` to the pictures that clips of a video show, given to it one at a time.

    Raises:
        DocumentError: as in :func:`~preshard.packer_service.ingest.media.crops.encoded_pictures` and :func:`crops`.
        OSError: as in :func:`probe`, or raised by ``keep``.
    """
    options: dict[str, Any] = {"image_format": config.image_format, "jpeg_quality": config.jpeg_quality}
    return _gather(keep, config, "decode_failed", encoded_pictures, medium, base, list(shown), **options)


def _gather(
    keep: Callable[[Iterator[Any]], T],
    config: PackConfig,
    code: str,
    function: Callable[..., Any],
    medium: Medium,
    base: MediaReach,
    *args: Any,
    **options: Any,
) -> T:
    try:
        return STORES.ask(medium, base, lambda: _decoder(config).gather(keep, function, medium, base, *args, **options))
    except CallFailedError as error:
        raise DocumentError(code, f"{medium.label}: the decoder {error}") from None
