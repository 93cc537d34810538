"""The shards in software that knows nothing of preshard: webdataset, tarfile and GNU tar; and Molmo2's dict form."""

from __future__ import annotations

import io
import itertools
import json
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import webdataset as wds
from PIL import Image

ARRAYS = ["tokens", "labels", "loss_weights", "position_ids", "doc_ids", "branch_ids", "group_ids", "pool_ids"]


@pytest.fixture(scope="module")
def shards(tiny_dataset: Path) -> list[str]:
    return [str(path) for path in sorted((tiny_dataset / "shards").glob("*.tar"))]


@pytest.fixture(scope="module")
def packs(tiny_dataset: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(tiny_dataset / "packs.parquet").to_pylist()
    assert sum(row["n_images"] for row in rows), "some pack holds images"
    return rows


def test_plain_webdataset_gives_every_pack_decoded(shards: list[str], packs: list[dict[str, Any]]) -> None:
    """Fails when a key holds a dot, members of a sample are not together, or a member's extension says nothing."""
    samples = list(wds.WebDataset(shards, shardshuffle=False).decode("pil"))
    assert [sample["__key__"] for sample in samples] == [row["key"] for row in packs]
    for sample, row in zip(samples, packs, strict=True):
        head = sample["json"]
        assert head["pack_id"] == row["pack_id"]
        assert list(sample["sequence.npz"]) == ARRAYS
        assert sample["sequence.npz"]["tokens"].shape == (1024,)
        assert sample["layouts.npz"]["contiguous.ring1"].tolist() == [[0, 0, 1024]]
        images = [value for name, value in sample.items() if name.endswith(".jpg")]
        assert len(images) == len(head["images"]) == row["n_images"]
        for image, stored in zip(images, head["images"], strict=True):
            assert isinstance(image, Image.Image)
            assert image.size == (stored["width"], stored["height"])


def test_undecoded_webdataset_gives_the_bytes(shards: list[str]) -> None:
    """Fails when a member cannot be decoded by numpy alone."""
    sample = next(iter(wds.WebDataset(shards, shardshuffle=False)))
    arrays = np.load(io.BytesIO(sample["sequence.npz"]), allow_pickle=False)
    assert arrays.files == ARRAYS
    assert json.loads(sample["json"])["pack_id"] == 0


def test_the_index_agrees_with_the_tar(shards: list[str], packs: list[dict[str, Any]]) -> None:
    """Fails when an offset points anywhere but at a sample's first header, or the last not behind the last sample."""
    for shard in shards:
        index = np.fromfile(f"{shard}.idx", "<u8").tolist()
        with tarfile.open(shard) as tar:
            members = tar.getmembers()
        firsts = [member.offset for member in members if member.name.endswith(".json")]
        assert index == [*firsts, Path(shard).stat().st_size - 1024]
        mine = [row for row in packs if row["shard"] == Path(shard).name]
        assert index[:-1] == [row["offset"] for row in mine]
        assert [row["offset"] + row["size"] for row in mine] == index[1:]


def test_a_sample_cut_out_by_its_index_is_a_tar(shards: list[str], packs: list[dict[str, Any]]) -> None:
    """Fails when a reader that goes by offsets alone, as indexed tar readers do, gets half a sample."""
    for shard in shards:
        data = Path(shard).read_bytes()
        index = np.fromfile(f"{shard}.idx", "<u8").tolist()
        for begin, end in itertools.pairwise(index):
            with tarfile.open(fileobj=io.BytesIO(data[begin:end])) as tar:
                names = tar.getnames()
            key = names[0].partition(".")[0]
            row = next(row for row in packs if row["key"] == key)
            numbers = [f"{key}.{i:04d}.jpg" for i in range(row["n_images"])]
            assert names == [f"{key}.json", f"{key}.sequence.npz", f"{key}.layouts.npz", *numbers]


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs the tar command")
def test_the_tar_command_lists_the_shards_without_a_word(shards: list[str]) -> None:
    """Fails when a header is one that GNU tar repairs or complains of."""
    for shard in shards:
        listed = subprocess.run(["tar", "-tf", shard], capture_output=True, text=True, check=True)
        with tarfile.open(shard) as tar:
            assert listed.stdout.splitlines() == tar.getnames()
        assert listed.stderr == ""


def test_boundaries_have_the_form_that_molmo2_reads(shards: list[str]) -> None:
    """Fails when a key is renamed, a value is no integer, or a rank is missing: Molmo2 looks them up by these names.

    JSON has no integer keys, so sizes and ranks are strings here.
    """
    keys = {"start_image_idx", "end_image_idx", "start_pool_idx", "end_pool_idx", "max_num_tokens"}
    for sample in wds.WebDataset(shards, shardshuffle=False).decode():
        head = sample["json"]
        assert list(head["image_shard_boundaries"]) == ["1", "2", "4", "8"]
        for cp_size, ranks in head["image_shard_boundaries"].items():
            assert list(ranks) == [str(rank) for rank in range(int(cp_size))]
            assert all(set(rank) == keys for rank in ranks.values())
            assert all(type(value) is int for rank in ranks.values() for value in rank.values())
            pooled = [rank["end_pool_idx"] - rank["start_pool_idx"] for rank in ranks.values()]
            assert {rank["max_num_tokens"] for rank in ranks.values()} == {max(pooled)}
            assert sum(pooled) == _pooled(sample)
        for bounds in ("cum_image_bounds", "cum_token_pooling_bounds"):
            assert all(type(value) is int for value in head[bounds])
            assert head[bounds] == sorted(head[bounds])


def _pooled(sample: dict[str, Any]) -> int:
    return int((sample["sequence.npz"]["pool_ids"] >= 0).sum())
