"""A dataset among the sources: recognised by its manifest, whose list of shards is hashed and not kept."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import pytest

from preshard.packer_service.ingest.packed.manifest import dataset_manifest
from preshard.schemas.dataset.manifest_parts import manifest_parts
from preshard.schemas.encode import encode_json
from preshard.schemas.errors import ConfigError
from preshard.schemas.manifest import (
    FORMAT_VERSION,
    TABLE_FILES,
    Counts,
    FiguresEntry,
    ManifestHead,
    ShardEntry,
    TableEntry,
    TokenizerEntry,
)

N_SHARDS = 150_000


def write_manifest(folder: Path, n_shards: int) -> str:
    """A manifest of so many shards; its hash."""
    head = ManifestHead(
        format_version=FORMAT_VERSION,
        dataset_id="1",
        preshard_version="0",
        config={},
        tokenizer=TokenizerEntry(
            name="x", sha256="", vocab_size=1, bos_id=None, eos_id=0, pad_id=0, image_id=0, chat_template_sha256=None
        ),
        model=None,
        sources=[],
        unused_columns={},
        unread_files={},
        filtered={},
        phases=[],
        counts=Counts(**dict.fromkeys(Counts.model_fields, 0)),
        tables=[TableEntry(name=name, bytes=0, sha256="0" * 64, rows=0) for name in TABLE_FILES],
        figures=FiguresEntry(bytes=0, sha256="0" * 64),
        carried=[],
    )
    entry = encode_json(ShardEntry(name="x.tar", bytes=1, sha256="0" * 64, packs=1, first_pack=0))
    content = b"".join(manifest_parts(head, [entry] * n_shards))
    (folder / "manifest.json").write_bytes(content)
    sha256: str = json.loads(content)["sha256"]
    return sha256


def test_shards_are_not_kept(tmp_path: Path) -> None:
    """Fails when opening a dataset as a source holds its list of shards, of which a large one has a million."""
    sha256 = write_manifest(tmp_path, N_SHARDS)
    tracemalloc.start()
    try:
        found = dataset_manifest(str(tmp_path))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert found is not None
    assert (found.head.dataset_id, found.sha256) == ("1", sha256)
    size = (tmp_path / "manifest.json").stat().st_size
    assert size > 16 * 2**20, "more than the blocks that are in memory at a time"
    assert peak < 14 * 2**20


def test_another_list_of_shards_is_another_dataset_or_damage(tmp_path: Path) -> None:
    """Fails when a manifest of other shards has the same identity, or a changed entry goes unnoticed."""
    assert write_manifest(tmp_path, 1) != write_manifest(tmp_path, 2)
    path = tmp_path / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"bytes":1', b'"bytes":2'))
    with pytest.raises(ConfigError, match="sha256 is"):
        dataset_manifest(str(tmp_path))


@pytest.mark.parametrize(
    "content", ["", "no JSON", "[1]", '{"name": "an app"}', '{"format_version":2}', '{"format_version":2,"shards":[]}']
)
def test_a_manifest_of_another_program_is_no_dataset(tmp_path: Path, content: str) -> None:
    """Fails when a folder of rows that has a file of this name is refused as a broken dataset."""
    (tmp_path / "manifest.json").write_text(content)
    assert dataset_manifest(str(tmp_path)) is None
