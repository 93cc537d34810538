"""Reads from the shards, observed from outside by a filesystem that records every request."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest
from pyarrow.fs import FSSpecHandler, PyFileSystem

from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.files import OPEN_SHARDS, DatasetFiles
from preshard.trainer.extra import store


class _RecordedFile:
    """A file that records offset and size of every read."""

    def __init__(self, path: str, requests: list[tuple[str, int, int]]) -> None:
        self.file = Path(path).open("rb")  # noqa: SIM115
        self.name, self.requests = Path(path).name, requests

    def read(self, size: int = -1) -> bytes:
        self.requests.append((self.name, self.file.tell(), size))
        return self.file.read(size)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


class _RecordingHandler(FSSpecHandler):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__(fsspec.filesystem("file"))
        self.requests: list[tuple[str, int, int]] = []
        self.opened: list[str] = []

    def open_input_file(self, path: str) -> pa.NativeFile:
        self.opened.append(Path(path).name)
        return pa.PythonFile(_RecordedFile(path, self.requests), mode="r")


@pytest.mark.parametrize(("ulysses", "ring", "rank"), [(1, 1, 0), (8, 1, 0), (2, 2, 3), (1, 8, 4)])
def test_only_the_header_part_and_the_ranks_own_images_are_read(
    packed: Path, whole: list[Any], ulysses: int, ring: int, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a read grows by one byte, a sample is read twice, or a requested byte is not counted, of a batch or of
    all.
    """
    monkeypatch.setattr(store, "SMALL", 0)  # below it, a sample is asked for whole, as these would be
    handler = _RecordingHandler()
    split = {"ulysses_degree": ulysses, "ring_degree": ring, "cp_rank": rank}
    dataset = PackedDataset(str(packed), **split, filesystem=PyFileSystem(handler), ahead=0)
    counted, opened = dataset.bytes_read, 0
    for batch in dataset:
        asked = [(at, size) for name, at, size in handler.requests if name.endswith(".tar")]
        sizes = sum(name.endswith(".tar") for name in handler.opened) - opened  # a request each
        opened += sizes
        handler.requests.clear()
        members = whole[batch.pack_id].members
        mine = members[3 + batch.start_image_idx : 3 + batch.end_image_idx]
        after_header = (
            members[3].offset if len(members) > 3 else members[2].offset_data + -(-members[2].size // 512) * 512
        )
        expected = [(members[0].offset, after_header - members[0].offset)]
        if mine:
            expected.append((mine[0].offset, mine[-1].offset_data + mine[-1].size - mine[0].offset))
        if mine == members[3:]:  # neighbours are asked for together
            expected = [(members[0].offset, dataset.files.packs()[batch.pack_id].size)]
            handler.requests.clear()
        assert asked == expected
        assert batch.bytes_read == sum(size for _, size in asked)
        counted += batch.bytes_read
        assert batch.reads == {
            "requests": len(asked) + sizes, "retries": 0, "fetched_bytes": batch.bytes_read, "cached_bytes": 0
        }  # fmt: skip
        assert batch.bytes_read <= expected[0][1] + sum(512 + -(-m.size // 512) * 512 for m in mine)
    assert dataset.bytes_read == counted > 0
    assert not [name for name in handler.opened if name.endswith(".idx")]


def test_the_parts_of_eight_ranks_are_the_sample_and_seven_headers(packed: Path) -> None:
    """Fails when ranks read each other's crops: together they would read more than every crop once."""
    every = [list(PackedDataset(packed, ulysses_degree=8, cp_rank=rank)) for rank in range(8)]
    for step, place in [(s, PackedDataset(packed).files.packs()[s[0].pack_id]) for s in zip(*every, strict=True)]:
        assert sum(batch.bytes_read for batch in step) <= place.size + 7 * place.header_size


def test_open_shards_are_bounded_and_kept(tmp_path: Path, packed: Path) -> None:
    """Fails when a shard is opened for each sample, or a large dataset runs out of file descriptors."""
    (tmp_path / "shards").mkdir()
    (tmp_path / "manifest.json").write_bytes((packed / "manifest.json").read_bytes())
    for i in range(OPEN_SHARDS + 1):
        (tmp_path / f"shards/{i}.tar").write_bytes(bytes([i]))
    handler = _RecordingHandler()
    files = DatasetFiles(str(tmp_path), PyFileSystem(handler))
    reads = [*range(OPEN_SHARDS), 0, OPEN_SHARDS, 0, 1]
    assert [files.read_range(f"{i}.tar", 0, 1)[0] for i in reads] == reads
    opened = [int(name.partition(".")[0]) for name in handler.opened if name.endswith(".tar")]
    assert opened == [*range(OPEN_SHARDS), OPEN_SHARDS, 1], "0 was in use, so 1 was the first to be closed"
    files.close()
    assert files.read_range("0.tar", 0, 1) == b"\0"


def test_a_uri_reads_as_a_path_does(packed: Path) -> None:
    """Fails when a URI is taken for a local path."""
    by_uri = next(iter(PackedDataset(packed.as_uri())))
    assert by_uri.tokens.tolist() == next(iter(PackedDataset(packed))).tokens.tolist()
