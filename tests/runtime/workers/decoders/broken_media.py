"""The packer's own decoders, breaking on some media. Called in the helper process, by their names."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import broken_decoders

from preshard.packer_service.ingest.media.crops import encoded_crops, encoded_pictures
from preshard.packer_service.ingest.media.image import probe_image
from preshard.packer_service.ingest.media.reach import MediaReach


def probe_that_crashes_on_one(medium: Any, base: MediaReach, **options: Any) -> Any:
    if medium.uri == "3.png":
        os.abort()
    return probe_image(medium, base, **options)


def crops_that_crash_on_one(medium: Any, base: MediaReach, shape: Any, **options: Any) -> Iterator[Any]:
    if medium.uri == "3.png":
        ctypes.string_at(0)
    yield from encoded_crops(medium, base, shape, **options)


def crops_that_eat_on_one(medium: Any, base: MediaReach, shape: Any, **options: Any) -> Iterator[Any]:
    crops = encoded_crops(medium, base, shape, **options)
    yield next(crops)
    if medium.uri == "3.png":
        broken_decoders.eats()
    yield from crops


def crops_that_crash_once(medium: Any, base: MediaReach, shape: Any, **options: Any) -> Iterator[Any]:
    """Crashes on two images, each in its first process."""
    marker = Path(base.folder, f"tried {medium.uri}")
    if medium.uri in ("1.png", "3.png") and not marker.exists():
        marker.touch()
        os.abort()
    yield from encoded_crops(medium, base, shape, **options)


def pictures_and_a_crash(medium: Any, base: MediaReach, pictures: Any, **options: Any) -> Iterator[Any]:
    """Wrong ones, as of a process whose memory is no longer its own."""
    for picture, _ in encoded_pictures(medium, base, pictures, **options):
        yield picture, b"not a picture"
    ctypes.string_at(0)


def loaded() -> set[str]:
    """Names of all packages that a process of decoders has loaded."""
    return {name.partition(".")[0] for name in sys.modules}
