"""The bytes of ``manifest.json``, also without a record for each shard in memory: there may be a million of them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator
from typing import IO, Any, NamedTuple

from pydantic import ValidationError

from preshard.schemas.codec import encode_json
from preshard.schemas.config import PackConfig, parse_config
from preshard.schemas.errors import ConfigError, ManifestInvalid
from preshard.schemas.files.validation import first_violation
from preshard.schemas.manifest import (
    FORMAT_VERSION,
    LARGEST_HEAD,
    MANIFEST,
    MOST_KEYS,
    UNSEALED,
    Manifest,
    ManifestHead,
    ShardEntry,
)

_SHARDS = b',"shards":['
_SEAL = b'],"sha256":"'
_END = b'"}'
_ENDING = len(_SEAL + UNSEALED.encode() + _END)

_BLOCK = 4 << 20
"""Bytes that are read at a time: an object store is asked 25 times for the manifest of 625,000 shards."""


class SealedHead(NamedTuple):
    """A manifest's head and the hash of the whole manifest, which says which one it is."""

    head: ManifestHead
    sha256: str


def manifest_parts(head: ManifestHead, shards: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of a manifest, sealed, a few at a time.

    Args:
        head: all of it but the shards.
        shards: each shard's entry, in order, as :func:`preshard.schemas.codec.encode_json` writes it.
    """
    digest, comma = hashlib.sha256(), b""
    start = encode_json(head).removesuffix(b"}") + _SHARDS
    digest.update(start)
    yield start
    for entry in shards:
        digest.update(comma + entry)
        yield comma + entry
        comma = b","
    digest.update(_SEAL + UNSEALED.encode() + _END)
    yield _SEAL + digest.hexdigest().encode() + _END


def decode_manifest_parts(data: bytes, where: str) -> tuple[ManifestHead, Iterator[ShardEntry]]:
    """A manifest's head, checked against the hash that the file holds, and its shards, each made when it is asked for.

    The parts lie as :func:`manifest_parts` writes them; any other legal JSON is decoded as a whole.

    Raises:
        ManifestInvalid: as of :func:`decode_manifest`; for an entry, when it is asked for.
    """
    head, entries = split_manifest(data, where)
    return head, decode_entries(entries, where)


def split_manifest(data: bytes, where: str) -> tuple[ManifestHead, bytes]:
    """The same with the shards as JSON, one entry after the other with commas between.

    Raises:
        ManifestInvalid: as of :func:`decode_manifest`, but for what the entries of shards hold.
    """
    head = read_manifest_head(io.BytesIO(data), where)
    if isinstance(head, Manifest):
        return head, b",".join(map(encode_json, head.shards))
    return head, data[data.index(_SHARDS) + len(_SHARDS) : -_ENDING]


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
        searched = max(len(start) - len(_SHARDS), 0)
        start += block
        at = start.find(_SHARDS, searched)
        _require_head_size(len(start) if at < 0 else at, where)
    if at < 0:
        return _sealed_whole(start, where)
    digest, held, size, start = hashlib.sha256(), start, len(start), start[:at]
    while block := file.read(_BLOCK):
        digest.update(memoryview(held)[:-_ENDING])
        held, size = held[-_ENDING:] + block, size + len(block)
    ending = held[-_ENDING:]
    if size < at + len(_SHARDS) + _ENDING or not (ending.startswith(_SEAL) and ending.endswith(_END)):
        _require_head_size(size, where)
        file.seek(0)
        return _sealed_whole(file.read(), where)
    digest.update(memoryview(held)[:-_ENDING])
    digest.update(_SEAL + UNSEALED.encode() + _END)
    head = _decode_head(start + b"}", where)
    sealed = ending[len(_SEAL) : -len(_END)].decode(errors="replace")
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


def _decode_head(data: bytes, where: str) -> ManifestHead:
    check_format_version(data, where)
    try:
        return ManifestHead.model_validate_json(data)
    except ValidationError as error:
        raise ManifestInvalid(where, str(first_violation(error))) from None


def decode_entries(data: bytes, where: str) -> Iterator[ShardEntry]:
    """Shards of :func:`split_manifest`, each made when it is asked for.

    Raises:
        ManifestInvalid: an entry is not legal.
    """
    text, at, decode = data.decode(), 0, json.JSONDecoder().raw_decode
    while at < len(text):
        try:
            entry, at = decode(text, at)
            yield ShardEntry.model_validate(entry)
        except ValidationError as error:
            raise ManifestInvalid(where, str(first_violation(error))) from None
        except ValueError as error:
            raise ManifestInvalid(where, f"the list of shards is not JSON ({error})") from None
        at += 1  # the comma


def seal_manifest(manifest: Manifest) -> Manifest:
    """Adds the hash of the manifest's own bytes, as :func:`encode_json` writes them."""
    unsealed = encode_json(manifest.model_copy(update={"sha256": UNSEALED}))
    return manifest.model_copy(update={"sha256": hashlib.sha256(unsealed).hexdigest()})


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
        remedy = f"; {_PACK_AGAIN}" if version in range(1, FORMAT_VERSION) else ""
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


def stored_config(manifest: ManifestHead) -> PackConfig:
    """The configuration that a dataset was packed with. A manifest writes every key out.

    Raises:
        ManifestInvalid: a key is missing or unknown, or a value is not legal.
    """
    try:
        config = parse_config(manifest.config)
    except ConfigError as error:
        raise ManifestInvalid(MANIFEST, f"config.{error}") from None
    for key in _not_written(config.model_dump(mode="json"), manifest.config):
        raise ManifestInvalid(MANIFEST, f"config.{key} is not written out, and a manifest has every key; {_PACK_AGAIN}")
    return config


_PACK_AGAIN = "pack its sources again: preshard pack SOURCE --out NEW_DATASET"


def _not_written(whole: dict[str, Any], stored: dict[str, Any], path: str = "") -> Iterator[str]:
    """Keys with dots of a complete configuration that a stored one lacks, or spells otherwise."""
    for key, value in whole.items():
        found = stored.get(key)
        if value and isinstance(value, dict) and isinstance(found, dict):
            yield from _not_written(value, found, f"{path}{key}.")
        elif key not in stored or found != value:
            yield f"{path}{key}"
