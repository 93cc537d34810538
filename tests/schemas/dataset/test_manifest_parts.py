"""A manifest in parts has the bytes, the checks and the entries of one that is held whole."""

from __future__ import annotations

import hashlib
import io
import json

import pytest
from pydantic import ValidationError

from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.manifest_parts import decode_manifest_parts, manifest_parts, seal_manifest
from preshard.schemas.dataset.read_manifest import decode_manifest, read_manifest_head
from preshard.schemas.encode import encode_json
from preshard.schemas.errors import ManifestInvalid
from preshard.schemas.manifest import (
    FORMAT_VERSION,
    TABLE_FILES,
    Counts,
    FiguresEntry,
    Manifest,
    ManifestHead,
    ShardEntry,
    TableEntry,
    TokenizerEntry,
)

TOKENIZER = TokenizerEntry(
    name="t", sha256="0", vocab_size=9, bos_id=None, eos_id=1, pad_id=2, image_id=3, chat_template_sha256=None
)
SHARDS = [
    ShardEntry(name=f'é{i}}},"{{,"shards":[.tar', bytes=i, sha256="ab" * 32, packs=1, first_pack=i) for i in range(3)
]


def manifest(shards: list[ShardEntry]) -> Manifest:
    return Manifest(
        format_version=FORMAT_VERSION,
        dataset_id="0" * 64,
        preshard_version="1",
        config=PackConfig().model_dump(mode="json"),
        tokenizer=TOKENIZER,
        model=None,
        sources=['a},"shards":[b'],
        unused_columns={"shards": 1},
        unread_files={},
        filtered={},
        phases=[],
        counts=Counts(**dict.fromkeys(Counts.model_fields, 0)),
        tables=[TableEntry(name=name, bytes=0, sha256="ef" * 32, rows=0) for name in TABLE_FILES],
        figures=FiguresEntry(bytes=0, sha256="cd" * 32),
        carried=[],
        shards=shards,
    )


def head_of(whole: Manifest) -> ManifestHead:
    return ManifestHead(**{name: getattr(whole, name) for name in ManifestHead.model_fields})


@pytest.mark.parametrize("shards", [[], SHARDS[:1], SHARDS], ids=len)
def test_parts_are_the_whole(shards: list[ShardEntry]) -> None:
    """Fails when a manifest that is written in parts differs by a byte, or reading one loses or adds an entry."""
    whole = manifest(shards)
    data = b"".join(manifest_parts(head_of(whole), map(encode_json, shards)))
    assert data == encode_json(seal_manifest(whole))
    head, entries = decode_manifest_parts(data, "x")
    assert head == head_of(whole)
    assert list(entries) == shards


def test_another_order_of_keys_is_read_too() -> None:
    """Fails when a manifest of another writer, whose shards do not come last, is refused or read wrongly."""
    fields = json.loads(encode_json(manifest(SHARDS)))
    first = {"shards": fields.pop("shards"), **fields}
    digest = hashlib.sha256(json.dumps(first).encode()).hexdigest()
    data = json.dumps(first).replace("0" * 64 + '"}', digest + '"}').encode()
    assert decode_manifest(data, "x").shards == SHARDS
    assert list(decode_manifest_parts(data, "x")[1]) == SHARDS
    assert read_manifest_head(io.BytesIO(data), "x") == decode_manifest(data, "x")


class Slow(io.BytesIO):
    """Gives at most ``most`` bytes at a time."""

    def __init__(self, data: bytes, most: int) -> None:
        super().__init__(data)
        self.most = most

    def read(self, size: int | None = -1) -> bytes:
        return super().read(size if size is None or size < 0 else min(size, self.most))


@pytest.mark.parametrize("most", [1, 76, 77, 78, 500, 1 << 20])
@pytest.mark.parametrize("shards", [[], SHARDS], ids=len)
def test_a_head_is_read_in_blocks_of_any_size(shards: list[ShardEntry], most: int) -> None:
    """Fails when a reader loses the list's beginning or the hash where a block ends between its bytes."""
    data = encode_json(seal_manifest(manifest(shards)))
    assert read_manifest_head(Slow(data, most), "x") == head_of(manifest(shards))


def damage(data: bytes, old: bytes, new: bytes) -> bytes:
    """Damages a manifest, with a hash that is right again."""
    unsealed = data.replace(old, new).replace(json.loads(data)["sha256"].encode(), b"0" * 64)
    return unsealed.replace(b'"sha256":"' + b"0" * 64, b'"sha256":"' + hashlib.sha256(unsealed).hexdigest().encode())


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"bytes":1', b'"bytes":-1', "bytes"),
        (b'"packs":1,', b"", "packs"),
        (b'"first_pack":0}', b'"first_pack":0', "list of shards is not JSON"),
        (b'"format_version":3', b'"format_version":7', "format_version is 7"),
        (b'"unread_files":{},', b"", "unread_files"),
        (b'"preshard_version"', b'preshard_version"', "is not a JSON object"),
    ],
)
def test_damage_is_named(old: bytes, new: bytes, said: str) -> None:
    """Fails when a manifest that is refused as a whole is read in parts."""
    data = damage(encode_json(seal_manifest(manifest(SHARDS))), old, new)
    with pytest.raises(ManifestInvalid):
        decode_manifest(data, "x")
    with pytest.raises(ManifestInvalid, match=said):
        list(decode_manifest_parts(data, "x")[1])
    if said in ("format_version is 7", "unread_files", "is not a JSON object"):
        with pytest.raises(ManifestInvalid, match=said):
            read_manifest_head(io.BytesIO(data), "x")


def test_bytes_that_do_not_match_the_hash_are_refused() -> None:
    """Fails when a changed entry, or a changed hash, is not noticed."""
    data = encode_json(seal_manifest(manifest(SHARDS)))
    for old, new in ((b'"bytes":1', b'"bytes":2'), (data[-66:-60], b"000000"), (b'"}', b'"} ')):
        with pytest.raises(ManifestInvalid):
            decode_manifest_parts(data.replace(old, new), "x")
        with pytest.raises(ManifestInvalid):
            read_manifest_head(io.BytesIO(data.replace(old, new)), "x")
    for end in (10, len(data) // 2, len(data) - 1):
        with pytest.raises(ManifestInvalid):
            read_manifest_head(io.BytesIO(data[:end]), "x")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b'"counts":{', b'"counts":{"packs":1,', "has the key 'packs' twice in one object"),
        (b'"phases":[]', b'"phases":' + b"[" * 100_000 + b"]" * 100_000, "is nested too deeply"),
        (b'"name":"documents.parquet"', b'"name":"packs.parquet"', "tables: has "),
        (b'"name":"documents.parquet"', b'"name":"../documents.parquet"', "tables.1.name"),
        (b'"name":"packs.parquet"', b'"name":"a\\u0000b"', "tables.0.name"),
    ],
    ids=["a key twice", "deep", "a table twice", "elsewhere", "no name"],
)
def test_a_manifest_that_says_two_things_is_refused(old: bytes, new: bytes, said: str) -> None:
    """Fails when one of two values of a key is taken, or a table is looked for that the dataset does not have."""
    data = b"".join(manifest_parts(head_of(manifest([])), []))
    assert data.count(old) == 1
    for read in (decode_manifest, lambda data, where: decode_manifest_parts(data, where)[0]):
        with pytest.raises(ManifestInvalid, match=said):
            read(data.replace(old, new), "x")


@pytest.mark.parametrize("digest", ["../../../x", "/tmp/x", "", "AB" * 32, "ab" * 32 + "\n"])
def test_a_hash_is_no_path(digest: str) -> None:
    """Fails when the file that is named by a table's hash can be made to lie anywhere."""
    with pytest.raises(ValidationError):
        TableEntry(name="packs.parquet", bytes=0, sha256=digest, rows=0)
    with pytest.raises(ValidationError):
        ShardEntry(name="a.tar", bytes=0, sha256=digest, packs=0, first_pack=0)
