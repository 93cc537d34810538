"""A dataset in an object store as its readers see it: the same figures and batches as from a disk."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import torch
from range_server import served_ranges

from preshard.packer_service.report.dataset import report_dataset
from preshard.packer_service.verify import verify_dataset
from preshard.schemas.dataset.read_manifest import SHARD_LIST
from preshard.schemas.errors import ManifestInvalid
from preshard.schemas.manifest import MANIFEST
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.files import DatasetFiles
from preshard.trainer.data.loader import make_loader

SPLIT = {"ring_degree": 2, "cp_rank": 1, "layout": "balanced_ring"}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No second request beside one that a busy machine is slow to answer: requests are counted here. No sample is
    small enough to be read whole.
    """
    monkeypatch.setattr("preshard.trainer.extra.store.LEAST_SLOW", 600.0)
    monkeypatch.setattr("preshard.trainer.extra.store.SMALL", 0)


def test_it_is_verified_and_reported_as_a_local_one(remote_dataset: str, tiny_dataset: Path, progress: object) -> None:
    """Fails when verify or report find something else in a bucket than on a disk."""
    verdicts = [verify_dataset(at, processes=1, progress=progress) for at in (remote_dataset, str(tiny_dataset))]
    remote, local = ({**verdict.as_json(), "dataset": ""} for verdict in verdicts)
    assert remote == local
    assert remote["broken"] == []
    assert report_dataset(remote_dataset) == report_dataset(str(tiny_dataset))


def test_files_that_are_verified_whole_are_asked_for_in_large_parts(
    tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, progress: Any
) -> None:
    """Fails when verify asks a store for a shard a few bytes at a time, or for all of it at once, or opens a table for
    each of its columns.
    """
    shutil.copytree(tiny_dataset, tmp_path / "dataset")
    shards = {f"dataset/shards/{path.name}": path.stat().st_size for path in (tiny_dataset / "shards").glob("*.tar")}
    for part in (max(shards.values()), max(shards.values()) // 4):
        monkeypatch.setattr("preshard.packer_service.shards.store.STREAM_BYTES", part)
        with served_ranges(tmp_path) as server:
            verdict = verify_dataset(server.uri.replace("?", "/dataset?"), processes=1, progress=progress)
            assert verdict.as_json()["broken"] == []
            assert {name: server.sent[name] for name in shards} == shards
            expected = {name: 2 + -(-size // part) for name, size in shards.items()}  # twice for its size
            assert {name: server.requests[name] for name in shards} == expected
            assert server.requests["dataset/packs.parquet"] < 16, "22, were each figure's column read by itself"


@pytest.mark.parametrize("workers", [None, 1])
def test_a_rank_reads_the_same_by_ranges(remote_dataset: str, tiny_dataset: Path, workers: int | None) -> None:
    """Fails when a rank gets another batch from a bucket, reads more of it, or a worker has no client of its own."""
    local, remote = (PackedDataset(path, **SPLIT) for path in (tiny_dataset, remote_dataset))
    expected = list(local)
    batches = make_loader(remote, workers=workers, device="cpu") if workers else remote
    n_images = 0
    for mine, other in zip(expected, islice(batches, len(expected)), strict=True):
        assert other.pack_id == mine.pack_id
        assert workers or other.bytes_read == mine.bytes_read
        for name in ("tokens", "labels", "position_ids", "images"):
            torch.testing.assert_close(getattr(other, name), getattr(mine, name), rtol=0, atol=0)
        n_images += len(mine.images)
    assert n_images


def test_a_store_can_be_told_by_the_environment(remote_dataset: str, tiny_dataset: Path) -> None:
    """Fails when URIs must hold an endpoint: in Kubernetes it comes from a config map, as the S3 overlay has it."""
    location, _, query = remote_dataset.partition("?")
    told = {key: value for key, [value] in parse_qs(query).items()}
    environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith("AWS_ENDPOINT")},
        "AWS_ENDPOINT_URL": f"http://{told['endpoint_override']}",
        "AWS_REGION": told["region"],
    }
    command = [sys.executable, "-m", "preshard.packer_service", "report", location, "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["packs"] == report_dataset(str(tiny_dataset)).packs


def test_a_large_table_is_asked_for_by_ranges(
    tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when opening a large dataset, or looking up its packs, asks a store more often, or for a whole table."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))  # where the places of its packs go
    monkeypatch.setattr("preshard.trainer.data.files.WHOLE_TABLE", 1000)
    shards = [f"shards/{path.name}" for path in (tiny_dataset / "shards").glob("*.tar")]
    with served_ranges(tiny_dataset) as server:
        dataset = PackedDataset(server.uri, **SPLIT)
        assert server.requests == {"manifest.json": 2, "packs.parquet": 2}, "a size and a read of each"
        batches = list(dataset)
        ranges = sum(1 + bool(len(batch.images)) for batch in batches)
        assert sum(server.requests[name] for name in shards) == len(shards) + ranges
        assert sum(server.sent[name] for name in shards) == sum(batch.bytes_read for batch in batches)
        assert server.requests["packs.parquet"] == 3, "one for all columns"
        again = list(PackedDataset(server.uri, **SPLIT))
        assert server.requests["packs.parquet"] == 3, "another process of the node knows its row groups and places"
        assert [batch.pack_id for batch in again] == [batch.pack_id for batch in batches]


def test_a_small_sample_is_one_request(tiny_dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a rank asks twice for a part of a sample that is sooner there as a whole, or takes more of others."""
    place = DatasetFiles(tiny_dataset).packs()[0]
    sizes = [each.size for each in DatasetFiles(tiny_dataset).packs()]
    monkeypatch.setattr("preshard.trainer.extra.store.SMALL", place.size)
    with served_ranges(tiny_dataset) as server:
        batches = list(PackedDataset(server.uri, **SPLIT))
    n_requests = len(list((tiny_dataset / "shards").glob("*.tar")))  # each for its size
    for mine, other in zip(batches, PackedDataset(tiny_dataset, **SPLIT), strict=True):
        assert torch.equal(mine.images, other.images)
        small = sizes[mine.pack_id] <= place.size
        assert mine.bytes_read == (sizes[mine.pack_id] if small else other.bytes_read)
        n_requests += 1 if small else 1 + bool(len(other.images))
    assert sum(batch.reads["requests"] for batch in batches) == n_requests
    assert {len(batch.images) > 0 for batch in batches if sizes[batch.pack_id] <= place.size} & {True}
    assert max(sizes) > place.size


def test_the_head_of_a_long_manifest_is_enough(
    tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when opening a dataset of many shards reads their list, or takes another manifest than one read whole."""
    written = (tiny_dataset / MANIFEST).read_bytes()
    begin = written.index(SHARD_LIST) + len(SHARD_LIST)
    monkeypatch.setattr("preshard.trainer.extra.store.WHOLE_MANIFEST", begin + 9)
    monkeypatch.setattr("preshard.trainer.extra.store.FIRST_WAIT", 0.001)
    shutil.copytree(tiny_dataset, tmp_path / "dataset")
    expected = DatasetFiles(tiny_dataset).manifest
    fields = json.loads(written)
    turned = json.dumps({"shards": fields.pop("shards"), **fields}).encode()
    sealed = turned.replace(fields["sha256"].encode(), b"0" * 64)
    sealed = sealed.replace(b"0" * 64 + b'"}', hashlib.sha256(sealed).hexdigest().encode() + b'"}')
    with served_ranges(tmp_path / "dataset") as server:
        assert DatasetFiles(server.uri).manifest == expected
        assert (server.requests[MANIFEST], server.sent[MANIFEST]) == (2, begin + 9), "its size and one range"
        (tmp_path / "dataset" / MANIFEST).write_bytes(sealed)
        assert DatasetFiles(server.uri).manifest.dataset_id == expected.dataset_id
        for damaged in (written.replace(b'"counts":{', b'"counts":{{'), written[: begin - 9]):
            (tmp_path / "dataset" / MANIFEST).write_bytes(damaged)
            with pytest.raises(ManifestInvalid):
                DatasetFiles(server.uri)
