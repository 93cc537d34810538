"""Datasets on the Hugging Face Hub, through its own client, on a server of this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import HfFileSystem, constants
from PIL import Image

from preshard.data import PackedDataset
from preshard.packer_service.config import load_config
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.shards.store import Folder
from preshard.packer_service.verify import verify_dataset
from preshard.schemas.errors import ConfigError, ManifestMissing
from preshard.schemas.files import filesystem

sys.path.insert(0, str(Path(__file__).parent))

from hub_server import TOKEN, Hub

pytestmark = pytest.mark.process  # a job packs

SETTINGS = ["seq_len=1024", "block_size=32", "vision.image_size=56", "vision.pool_size=2", "max_images=24"]
SETTINGS += ["packs_per_shard=1", "order.window=4", "ring_degrees=[1,2]", "cp_sizes=[1,2]"]
PLACE = "hf://datasets/me/packs"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A Hub with an empty repository, and this process with a token for it."""
    server = Hub("me/packs")
    Thread(target=server.serve_forever, daemon=True).start()
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, server.endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", server.endpoint)
    monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    filesystem._client.cache_clear()
    yield server
    filesystem._client.cache_clear()
    server.shutdown()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Rows with images, one of which names another repository."""
    noise = np.random.default_rng(0)
    for number in range(4):
        Image.fromarray(noise.integers(0, 255, (40, 50, 3), np.uint8)).save(tmp_path / f"{number}.png")
    images = [*(f"{number % 4}.png" for number in range(30)), "hf://datasets/others/private/secret.png"]
    parts = [[{"type": "image", "image": name}, {"type": "text", "text": "what is it? " * 20}] for name in images]
    rows = [
        {"messages": [{"role": "user", "content": part}, {"role": "assistant", "content": "noise"}]} for part in parts
    ]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return tmp_path


def _pack(source: str, out: str, progress: Any) -> None:
    pack([source], out, load_config(None, SETTINGS), PlainExecutor(), progress)


def test_a_source_and_a_dataset_on_the_hub(hub: Hub, source: Path, tmp_path: Path, progress: Any) -> None:
    """Fails when bytes differ from those on a disk, a row reaches another repository, or a rank reads whole shards."""
    _pack(str(source / "rows.jsonl"), str(tmp_path / "local"), progress)
    for path in [*source.glob("*.png"), source / "rows.jsonl"]:
        hub.files[f"source/{path.name}"] = path.read_bytes()
    _pack(f"{PLACE}/source/rows.jsonl", f"{PLACE}/packed", progress)
    names = [name for name in Folder(str(tmp_path / "local")).names() if name not in ("run.json", "manifest.json")]
    assert len([name for name in names if name.endswith(".tar")]) > 1
    for name in names:
        if name != "rejects.parquet":  # which says where the row that was rejected lies
            assert hub.files[f"packed/{name}"] == (tmp_path / "local" / name).read_bytes(), name
    assert not [name for name in hub.files if ".work" in name]
    assert not [request for request in hub.requests if "secret" in request]
    assert b"missing_media" in hub.files["packed/rejects.parquet"]
    assert not verify_dataset(f"{PLACE}/packed", processes=1, progress=progress).broken
    hub.sent = 0
    dataset = PackedDataset(f"{PLACE}/packed", layout="balanced_ring", ring_degree=2)
    opened, hub.sent = hub.sent, 0
    right = list(PackedDataset(tmp_path / "local", layout="balanced_ring", ring_degree=2))
    for batch, local in zip(dataset, right, strict=True):
        assert torch.equal(batch.tokens, local.tokens)
        assert torch.equal(batch.pixels, local.pixels)
    assert opened > 0
    assert hub.sent == dataset.bytes_read, "and nothing read ahead"


def test_files_that_another_process_has_written_are_seen(hub: Hub) -> None:
    """Fails when a driver does not see what its helpers have just written."""
    folder = Folder(f"{PLACE}/job")
    folder.write("one", b"1")
    assert folder.names() == ["one"]
    assert folder.size("two") is None
    hub.files["job/two"] = b"22"
    assert folder.size("two") == 2
    assert folder.names() == ["one", "two"]


def test_a_hub_that_throttles_has_every_file(hub: Hub, tiny_dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when files of which the Hub will not speak now are taken for missing, or a closed repository for busy."""
    for path in tiny_dataset.rglob("*"):
        if path.is_file():
            hub.files[f"packed/{path.relative_to(tiny_dataset)}"] = path.read_bytes()
    asked, info = list[str](), HfFileSystem.info

    def throttled(files: HfFileSystem, path: str, *given: Any, **named: Any) -> Any:
        asked.append(path)
        if len(asked) % 3 == 1:
            raise OSError("429 Too Many Requests")  # as HfHubHTTPError is one
        return info(files, path, *given, **named)

    monkeypatch.setattr(HfFileSystem, "info", throttled)
    monkeypatch.setattr("preshard.trainer.extra.store.FIRST_WAIT", 0.001)
    found = [batch.pack_id for batch in PackedDataset(f"{PLACE}/packed", ahead=0)]
    assert found == [batch.pack_id for batch in PackedDataset(tiny_dataset)]
    assert any(".tar" in path for path in asked)


def test_what_cannot_be_opened_is_said_in_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a token in a URI is taken, or a repository that is missing or closed gives a traceback."""
    with pytest.raises(ConfigError, match=r"hf:// takes no options.*HF_TOKEN"):
        Folder(f"{PLACE}?token=hf_x")
    with pytest.raises(ManifestMissing, match=r"hf://datasets/me/none/manifest.json: is missing"):
        PackedDataset("hf://datasets/me/none")
    monkeypatch.setenv("HF_TOKEN", "hf_another")
    filesystem._client.cache_clear()
    with pytest.raises(FileNotFoundError, match=r"repository not found\). If the repo is private"):
        Folder(PLACE).write("one", b"1")
