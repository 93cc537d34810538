"""The head of a manifest, as readers take it: held against the hash in the file, in little memory."""

from __future__ import annotations

import hashlib
import json
from typing import IO, Any, NamedTuple

from pydantic import ValidationError

from preshard.schemas.errors import ManifestInvalid
from preshard.schemas.files.validation import first_violation
from preshard.schemas.manifest import (
    FORMAT_VERSION,
    LARGEST_HEAD,
    MOST_KEYS,
    PACK_AGAIN,
    UNSEALED,
    Manifest,
    ManifestHead,
    ShardEntry,
)

SHARD_LIST = b',"shards":['

SEAL = b'],"sha256":"'

END = b'"}'

ENDING = len(SEAL + UNSEALED.encode() + END)

_BLOCK = 4 << 20
"""Bytes that are read at a time: an object store is asked 25 times for the manifest of 625,000 shards."""


class SealedHead(NamedTuple):
    """A manifest's head and the hash of the whole manifest, which says which one it is."""

    head: ManifestHead
    sha256: str


def read_manifest_head(file: IO[bytes], where: str) -> ManifestHead:
    """The head of :func:`read_sealed_head`."""
    return read_sealed_head(file, where).head


def read_sealed_head(file: IO[bytes], where: str) -> SealedHead:
    """A manifest's head, checked against the hash that the file holds, with memory for three blocks of the file.

    The entries of shards are hashed and not decoded. As with :func:`decode_manifest_parts`, other legal JSON than
    :func:`manifest_parts` writes is decoded as a whole.

    Args:
        file: from its first byte; can be read again.
        where: how errors name it.

    Raises:
        ManifestInvalid: as of :func:`decode_manifest`, but for what the entries of shards hold.
    """
    start, at = b"", -1
    while at < 0 and (block := file.read(_BLOCK)):
        searched = max(len(start) - len(SHARD_LIST), 0)
        start += block
        at = start.find(SHARD_LIST, searched)
        _require_head_size(len(start) if at < 0 else at, where)
    if at < 0:
        return _sealed_whole(start, where)
    digest, held, size, start = hashlib.sha256(), start, len(start), start[:at]
    while block := file.read(_BLOCK):
        digest.update(memoryview(held)[:-ENDING])
        held, size = held[-ENDING:] + block, size + len(block)
    ending = held[-ENDING:]
    if size < at + len(SHARD_LIST) + ENDING or not (ending.startswith(SEAL) and ending.endswith(END)):
        _require_head_size(size, where)
        file.seek(0)
        return _sealed_whole(file.read(), where)
    digest.update(memoryview(held)[:-ENDING])
    digest.update(SEAL + UNSEALED.encode() + END)
    head = decode_head(start + b"}", where)
    sealed = ending[len(SEAL) : -len(END)].decode(errors="replace")
    if digest.hexdigest() != sealed:
        raise ManifestInvalid(where, f"sha256 is {sealed}, which is not the hash of the file with this field as zeros")
    return SealedHead(head, digest.hexdigest())


def _require_head_size(size: int, where: str) -> None:
    """A head in memory, or JSON that others wrote, of which no part is known before all of it is decoded."""
    if size > LARGEST_HEAD:
        raise ManifestInvalid(where, f"has more than {LARGEST_HEAD:,} bytes before its list of shards")


def _sealed_whole(data: bytes, where: str) -> SealedHead:
    manifest = decode_manifest(data, where)
    return SealedHead(manifest, manifest.sha256)


def decode_head(data: bytes, where: str) -> ManifestHead:
    """Raises ManifestInvalid: as of :func:`decode_manifest`, but for the hash."""
    check_format_version(data, where)
    try:
        return ManifestHead.model_validate_json(data)
    except ValidationError as error:
        raise ManifestInvalid(where, str(first_violation(error))) from None


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Raises ManifestInvalid: not JSON, another format version, a field that is missing, unknown or has the wrong type,
    or bytes that do not match the hash stored in the manifest itself.
    """
    check_format_version(data, where)
    try:
        manifest = Manifest.model_validate_json(data)
    except ValidationError as error:
        raise ManifestInvalid(where, str(first_violation(error))) from None
    unsealed = data.replace(manifest.sha256.encode(), UNSEALED.encode())
    if hashlib.sha256(unsealed).hexdigest() != manifest.sha256:
        raise ManifestInvalid(
            where, f"sha256 is {manifest.sha256}, which is not the hash of the file with this field as zeros"
        )
    return manifest


def check_format_version(data: bytes, where: str) -> None:
    """Raises ManifestInvalid: not JSON, another format version, or more keys than any manifest has."""
    if (keys := _count_keys(data)) > MOST_KEYS:
        raise ManifestInvalid(where, f"has {keys:,} keys beside those of shards; at most {MOST_KEYS:,} are legal")
    try:
        version = json.loads(data, object_pairs_hook=_without_twice)["format_version"]
    except _TwiceError as error:
        raise ManifestInvalid(where, f"has the key {str(error)!r:.120} twice in one object") from None
    except RecursionError:
        raise ManifestInvalid(where, "is nested too deeply to be a manifest") from None
    except (ValueError, TypeError, KeyError):
        raise ManifestInvalid(where, "is not a JSON object with a format_version") from None
    if version != FORMAT_VERSION:
        remedy = f"; {PACK_AGAIN}" if version in range(1, FORMAT_VERSION) else ""
        raise ManifestInvalid(
            where, f"format_version is {version!r:.80}; this version of preshard reads {FORMAT_VERSION}{remedy}"
        )


class _TwiceError(Exception):
    """A key that an object of JSON has twice, of which readers take one or the other."""


def _without_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise _TwiceError(next(name for name in names if names.count(name) > 1))
    return found


def _count_keys(data: bytes) -> int:
    """Keys of some JSON but for those of shards, found without decoding it; in a text, what looks like one counts."""
    return data.count(b'":') + data.count(b'" :') - len(ShardEntry.model_fields) * data.count(b'"first_pack":')
