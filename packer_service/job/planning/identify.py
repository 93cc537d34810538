"""Identity of documents: notes of measuring by which it can be seen whether another one says or shows the same."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import cache
from hashlib import blake2b
from typing import Any

import numpy as np
from jaxtyping import Int, UInt32

from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media.isolated import pixel_digest
from preshard.packer_service.ingest.media.reach import MediaReach, is_absolute
from preshard.packer_service.ingest.source.file import DATASET, SourceFile, SourceRow
from preshard.packer_service.job.planning.measured import PERMUTATIONS
from preshard.packer_service.packs.rendered import RenderedDocument
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.step_order import mix64
from preshard.schemas.errors import ConfigError
from preshard.schemas.sections import DuplicatesConfig

SHINGLE = 5
"""Neighbouring tokens that count as one element of a text."""

_AT_ONCE = 8192
"""Shingles that are hashed together, at half a KiB each."""


def check_duplicates(asked: DuplicatesConfig, files: Sequence[SourceFile]) -> None:
    """
    Raises:
        ConfigError: images are to be compared, and a packed dataset is among the sources.
    """
    stored = [file.label for file in files if file.kind == DATASET]
    if asked.images != "keep" and stored:
        raise ConfigError(
            f"duplicates.images {asked.images!r} compares decoded pixels of whole images, and {stored[0]} "
            "holds crops of them: set it when the source is packed"
        )


def identify(row: SourceRow, pieces: Sequence[RenderedDocument], config: PackConfig) -> dict[str, bytes | None]:
    """Columns of a measured row that tell whether another document is the same; nothing where nobody asks.

    ``text`` is a hash of its tokens and media, ``media`` one of its images and videos: of an image where ``images`` are
    compared its pixels, else its name or bytes. ``pictures`` is the same where it shows images and these are compared.
    ``signature`` is the MinHash of its text.

    Raises:
        DocumentError: an image cannot be decoded.
    """
    asked = config.duplicates
    if not asked.is_asked:
        return {}
    media, pictures = _media_digest(row, pieces, config)
    fingerprint = blake2b(digest_size=16)
    for piece in pieces:
        fingerprint.update(piece.tokens.tobytes())
    fingerprint.update(media or b"")
    words = [piece.tokens[piece.unit_ids < 0] for piece in pieces]
    return {
        "text": fingerprint.digest(),
        "media": media,
        "pictures": pictures,
        "signature": None if asked.near is None else minhash(np.concatenate(words)).astype("<u4").tobytes(),
    }


def _media_digest(
    row: SourceRow, pieces: Sequence[RenderedDocument], config: PackConfig
) -> tuple[bytes | None, bytes | None]:
    digest, by_pixels = blake2b(digest_size=16), config.duplicates.images != "keep"
    if row.document is None:
        crops = [
            image.crc32c
            for piece in pieces
            for number in piece.units.numbers.tolist()
            for image in piece.media[number].images
        ]
        digest.update(np.array(crops, "<u4").tobytes())
        return (digest.digest() if crops else None), None
    media = [medium for medium, _ in pieces[0].media]
    for medium in media:
        digest.update(_medium_bytes(medium, row.file.media, row.file.beneath_of, config if by_pixels else None))
    has_images = any(medium.kind == "image" for medium in media)
    found = digest.digest() if media else None
    return found, found if has_images and by_pixels else None


def _medium_bytes(
    medium: Medium, base: MediaReach, beneath_of: Callable[[list[str]], str], pixels_of: PackConfig | None
) -> bytes:
    """Bytes that tell a medium from others: an image's pixels where a configuration is given, else names or bytes."""
    if medium.kind == "image" and not medium.frames and pixels_of is not None:
        return b"pixels" + pixel_digest(medium, base, pixels_of)
    beneath = None if medium.uri is None or is_absolute(medium.uri) else beneath_of([medium.uri])
    frames = [_medium_bytes(frame, base, beneath_of, None).hex() for frame in medium.frames]
    data = None if medium.data is None else blake2b(medium.data).hexdigest()
    named = [medium.kind, medium.uri, beneath, data, frames]
    shown = [medium.start, medium.end, medium.fps, medium.max_frames, medium.page]
    return blake2b(json.dumps([*named, *shown]).encode()).digest()


def minhash(tokens: Int[np.ndarray, "tokens"]) -> UInt32[np.ndarray, "permutations"]:
    """The MinHash of a text's shingles, which ``datasketch`` gives by a scheme that its versions keep."""
    n = min(SHINGLE, max(1, len(tokens)))
    padded = tokens.astype(np.uint64) if len(tokens) else np.zeros(1, np.uint64)
    windows = np.lib.stride_tricks.sliding_window_view(padded, n)
    hashed = np.zeros(len(windows), np.uint64)
    for column in windows.T:
        hashed = mix64(hashed ^ (column + np.uint64(1)))
    shingles = np.unique((hashed >> np.uint64(32)).astype(np.uint32))
    sketch = _empty_sketch().copy()
    for first in range(0, len(shingles), _AT_ONCE):
        sketch.update_batch(shingles[first : first + _AT_ONCE].tolist())
    found: UInt32[np.ndarray, "permutations"] = sketch.digest()
    return found


@cache
def _empty_sketch() -> Any:
    from datasketch import MinHash  # it brings scipy, which takes a second

    return MinHash(num_perm=PERMUTATIONS, seed=1, scheme="affine32", hashfunc=int)
