"""The bytes of ``manifest.json``, also without a record for each shard in memory: there may be a million of them."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterable, Iterator
from typing import Any

from pydantic import ValidationError

from preshard.schemas.config import PackConfig, parse_config
from preshard.schemas.dataset.read_manifest import END, ENDING, SEAL, SHARD_LIST, read_manifest_head
from preshard.schemas.encode import encode_json
from preshard.schemas.errors import ConfigError, ManifestInvalid
from preshard.schemas.files.validation import first_violation
from preshard.schemas.manifest import (
    MANIFEST,
    UNSEALED,
    Manifest,
    ManifestHead,
    ShardEntry,
)
from preshard.schemas.read_config import not_written_out


def manifest_parts(head: ManifestHead, shards: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of a manifest, sealed, a few at a time.

    Args:
        head: all of it but the shards.
        shards: each shard's entry, in order, as :func:`preshard.schemas.encode.encode_json` writes it.
    """
    digest, comma = hashlib.sha256(), b""
    start = encode_json(head).removesuffix(b"}") + SHARD_LIST
    digest.update(start)
    yield start
    for entry in shards:
        digest.update(comma + entry)
        yield comma + entry
        comma = b","
    digest.update(SEAL + UNSEALED.encode() + END)
    yield SEAL + digest.hexdigest().encode() + END


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
    return head, data[data.index(SHARD_LIST) + len(SHARD_LIST) : -ENDING]


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
        raise ManifestInvalid(MANIFEST, not_written_out(key))
    return config


def _not_written(whole: dict[str, Any], stored: dict[str, Any], path: str = "") -> Iterator[str]:
    """Keys with dots of a complete configuration that a stored one lacks, or spells otherwise."""
    for key, value in whole.items():
        found = stored.get(key)
        if value and isinstance(value, dict) and isinstance(found, dict):
            yield from _not_written(value, found, f"{path}{key}.")
        elif key not in stored or found != value:
            yield f"{path}{key}"
