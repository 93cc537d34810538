"""Packing from and to an object store: the same bytes as on a disk, also after a stop."""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from indexed_files import write_indexed
from pyarrow import csv, ipc
from range_server import served_ranges
from stored import file_bytes

from preshard.packer_service.cli import main
from preshard.packer_service.config import load_config
from preshard.packer_service.ingest.document import Medium
from preshard.packer_service.ingest.media.reach import MediaReach, open_media
from preshard.packer_service.job.ownership import DatasetDamagedError
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.shards.store import Folder
from preshard.schemas.config import PackConfig
from preshard.schemas.dataset.read_manifest import decode_manifest
from preshard.schemas.errors import DocumentError
from preshard.schemas.files.filesystem import join, locate


@pytest.mark.usefixtures("ray_session")
def test_the_command_packs_from_bucket_to_bucket(
    store: Any, remote_source: str, tiny_dataset: Path, tiny_settings: list[str]
) -> None:
    """Fails when a byte depends on where source or dataset lie, or Ray's workers cannot reach the store."""
    words = [word for setting in tiny_settings for word in ("--set", setting)]
    with pytest.raises(SystemExit) as ended:
        main(["pack", remote_source, "--out", store.uri("command"), "--max-rejects", "0.3", *words])
    assert ended.value.code == 0
    assert store.files("command") == file_bytes(tiny_dataset)


def test_a_stopped_job_goes_on(
    store: Any,
    remote_source: str,
    tiny_dataset: Path,
    tiny_config: PackConfig,
    progress: object,
    stopping: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails when a run into a bucket starts again from nothing, or trusts a shard that was overwritten or is gone."""
    out = store.uri("stopped")
    with pytest.raises(stopping.Stopped):
        pack([remote_source], out, tiny_config, stopping(2), progress)
    assert "manifest.json" not in store.names("stopped")
    first = Folder(out)
    first.write("shards/preshard-000000.tar", first.read("shards/preshard-000000.tar").swapcase())
    rest = stopping(1000)
    pack([remote_source], out, tiny_config, rest, progress)
    assert rest.ran == {"build_and_keep": 2}
    assert store.files("stopped") == file_bytes(tiny_dataset)
    again = pack([remote_source], out, tiny_config, stopping(0), progress)
    assert again.already_done
    first.delete("shards/preshard-000001.tar.idx")
    for listed in (50_000, 1):  # where there are more shards than that, some are asked for one by one
        monkeypatch.setattr("preshard.packer_service.job.ownership.LISTED_SHARDS", listed)
        with pytest.raises(DatasetDamagedError, match=r"shards/preshard-000001\.tar\.idx is missing"):
            pack([remote_source], out, tiny_config, stopping(0), progress)


def test_credentials_in_a_uri_are_written_nowhere(
    store: Any, remote_source: str, tiny_config: PackConfig, progress: object, stopping: Any
) -> None:
    """Fails when a dataset contains the key that it was packed with, or another key makes another job."""
    source = remote_source.replace("s3://", "s3://someone:hunter2@")
    with pytest.raises(stopping.Stopped):
        pack([source], store.uri("secret"), tiny_config, stopping(1), progress)
    pack([remote_source], store.uri("secret"), tiny_config, PlainExecutor(), progress)
    run = json.loads(Folder(store.uri("secret")).read("run.json"))
    assert run["job"]["files"][0]["uri"].startswith("s3://preshard/")
    assert "hunter2" not in json.dumps(run)


def test_every_container_is_read_in_a_bucket(
    store: Any, tmp_path: Path, tiny_config: PackConfig, progress: object
) -> None:
    """Fails when a container is read on disks only, or the copy of a compressed file cannot lie in a store."""
    folder, table = tmp_path / "kinds", pa.table({"text": [f"some words {i}" for i in range(6)]})
    folder.mkdir()
    lines = b"".join(json.dumps(row).encode() + b"\n" for row in table.to_pylist())
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    (folder / "b.json").write_text(json.dumps(table.to_pylist()))
    csv.write_csv(table, folder / "c.csv")
    with ipc.new_stream(folder / "d.arrow", table.schema) as stream:
        stream.write_table(table)
    write_indexed(folder / "f.bin", [[[60 + i, 61], [62]] for i in range(5)])
    with tarfile.open(folder / "e.tar", "w") as tar:
        for number, row in enumerate(table.to_pylist()):
            member = tarfile.TarInfo(f"{number}.txt")
            member.size = len(row["text"])
            tar.addfile(member, io.BytesIO(row["text"].encode()))
    for path in folder.iterdir():
        filesystem, target = locate(join(store.uri("kinds"), path.name))
        with filesystem.open_output_stream(target, compression=None) as sink:
            sink.write(path.read_bytes())
    pack([str(folder / "*")], str(tmp_path / "out"), tiny_config, PlainExecutor(), progress)
    uri, _, query = store.uri("kinds").partition("?")
    outcome = pack([f"{uri}/*?{query}"], store.uri("out-of-kinds"), tiny_config, PlainExecutor(), progress)
    rejects = pq.read_table(io.BytesIO(Folder(store.uri("out-of-kinds")).read("rejects.parquet"))).to_pylist()
    assert outcome.manifest.counts.documents == 35, rejects
    assert store.files("out-of-kinds") == file_bytes(tmp_path / "out")


@pytest.mark.slow
def test_a_dataset_is_packed_again_from_bucket_to_bucket(
    store: Any, remote_dataset: str, tiny_dataset: Path, tmp_path: Path, progress: object, stopping: Any
) -> None:
    """Fails when documents or crops in a store come out of packs otherwise than on a disk, or a stop loses work."""
    changes = ["seq_len=2048", "cp_sizes=[1,2]", "ring_degrees=[1,2]", "packs_per_shard=1"]
    config = load_config(None, changes, [str(tiny_dataset)])
    pack([str(tiny_dataset)], str(tmp_path / "out"), config, PlainExecutor(), progress)
    assert load_config(None, changes, [remote_dataset]) == config
    with pytest.raises(stopping.Stopped):
        pack([remote_dataset], store.uri("packed-again"), config, stopping(2), progress)
    rest = stopping(1000)
    pack([remote_dataset], store.uri("packed-again"), config, rest, progress)
    assert rest.ran["measure_and_keep"] == 0
    assert store.files("packed-again") == file_bytes(tmp_path / "out")


def test_a_pack_again_is_asked_for_once_and_its_crops_once(
    tiny_dataset: Path, tmp_path: Path, progress: object
) -> None:
    """Fails when each document is a request to the store: one takes tens of milliseconds, and they add up."""
    stored = decode_manifest((tiny_dataset / "manifest.json").read_bytes(), "manifest.json").counts
    shards = [f"shards/{path.name}" for path in (tiny_dataset / "shards").glob("*.tar")]
    with served_ranges(tiny_dataset) as server:
        changes = load_config(None, ["order.seed=7"], [server.uri])
        pack([server.uri], str(tmp_path / "out"), changes, PlainExecutor(), progress)
        reads = sum(server.requests[name] for name in shards) - len(shards)  # beside the size of each
    assert 0 < reads <= 2 * stored.packs < stored.documents


@pytest.mark.parametrize("uri", ["nowhere.png", "pictures", "1.png/2.png"])
def test_a_reference_to_nothing_reads_the_same_as_on_a_disk(
    store: Any, tiny_source: Path, tmp_path: Path, uri: str
) -> None:
    """Fails when the reason why a medium is missing, which is in a dataset's bytes, depends on where it is missing."""
    local = tmp_path / "source"
    (local / "pictures").mkdir(parents=True)
    for name in ("1.png", "pictures/2.png"):
        (local / name).write_bytes((tiny_source / Path(name).name).read_bytes())
    reasons = []
    for base in (str(local), store.upload(local, "media")):
        with pytest.raises(DocumentError) as error, open_media(Medium(kind="image", uri=uri), MediaReach.of(base)):
            pass
        reasons.append((error.value.code, str(error.value)))
    assert reasons[0] == reasons[1]


def _fails(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as stopped:
        main(words)
    said = capsys.readouterr().err.strip()
    assert len(said.splitlines()) == 1, said
    return int(stopped.value.code or 0), said


def test_a_wrong_bucket_is_one_line(
    store: Any, tiny_source: Path, remote_source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails when a bucket that does not exist ends in a traceback, or a line that does not name it."""
    nowhere = f"s3://nowhere/folder?{store.query}"
    status, said = _fails(capsys, "pack", nowhere, "--out", str(tmp_path / "out"))
    assert (status, said) == (2, f"preshard: SOURCE {nowhere}: no such file or folder")
    status, said = _fails(capsys, "pack", str(tiny_source), "--out", nowhere)
    assert status == 2
    assert said.startswith(f"preshard: --out {nowhere}: cannot be written (")
    assert "bucket does not exist" in said
    status, said = _fails(capsys, "verify", nowhere)
    assert (status, said) == (2, f"preshard: DATASET {nowhere}: no such folder")


def test_a_wrong_endpoint_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Fails when a store that does not answer ends in a traceback, or is taken for an empty folder."""
    nobody = "s3://bucket/folder?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1"
    status, said = _fails(capsys, "pack", nobody, "--out", str(tmp_path / "out"))
    assert status == 2
    assert said.startswith(f"preshard: SOURCE {nobody}: ")
    assert "NETWORK_CONNECTION" in said
