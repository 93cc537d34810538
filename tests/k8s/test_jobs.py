"""Whole jobs as pods run them: the script that packs, on Ray, and the two pods of a training job."""

from __future__ import annotations

import json
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confined import WRITABLE, confined
from manifests import K8S, Object, arguments, of_kind, pods

from preshard.packer_service.config import load_config
from preshard.packer_service.demo.model import write_model_folder
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.verify import verify_dataset

SCRIPT = K8S / "components" / "pack" / "pack.sh"


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory, tiny_source: Path) -> Path:
    """Volume of the pods: the source, and the script with its configuration beside it."""
    folder = tmp_path_factory.mktemp("volume")
    shutil.copytree(tiny_source, folder / "tiny")
    folder.chmod(0o1777)
    text = SCRIPT.read_text(encoding="utf-8")
    assert "/etc/preshard/" in text
    program = folder / "preshard"  # the environment's own may be closed to other users
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m preshard "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    (folder / "pack.sh").write_text(text.replace("/etc/preshard/", f"{SCRIPT.parent}/"), encoding="utf-8")
    return folder


@pytest.mark.cluster
@pytest.mark.usefixtures("can_confine")
def test_a_whole_job_packs_as_in_a_pod(volume: Path, progress: Any) -> None:
    """Fails when Ray, a decoder or a compiled loop needs root, or writes outside /tmp and the volumes."""
    places = {
        "SOURCE": f"{WRITABLE}/tiny",
        "DATASET": f"{WRITABLE}/dataset",
        "PRESHARD_PAUSE": "0",
        "MAX_REJECTS": "0.3",
    }
    process = confined(["sh", f"{WRITABLE}/pack.sh"], volume, PATH=f"{WRITABLE}:/usr/bin:/bin", **places)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert verify_dataset(str(volume / "dataset"), progress=progress).sound


@pytest.fixture(scope="module")
def training_volume(tmp_path_factory: pytest.TempPathFactory, progress: Any) -> Path:
    """Volume of the training pods: a dataset, the model's folder, and a place for checkpoints."""
    folder = tmp_path_factory.mktemp("training")
    write_model_folder(folder / "model", "qwen3", vocabulary=400)
    rows = [{"id": f"{number}", "text": "a row of ordinary words " * (5 + number)} for number in range(24)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    settings = [f"model={folder / 'model'}", "seq_len=256", "block_size=16", "order.window=1"]
    pack([str(folder / "rows.jsonl")], str(folder / "dataset"), load_config(None, settings), PlainExecutor(), progress)
    folder.chmod(0o1777)
    return folder


def trainer_words(objects: list[Object], port: int) -> list[str]:
    """Command of the training Job's pods, with a model of random weights, for two steps, on this machine."""
    [job] = of_kind(objects, "Job")
    [pod] = pods([job])
    [container] = pod.containers
    [maps] = of_kind(objects, "ConfigMap")
    maps["data"] |= {name: f"{WRITABLE}/{name.lower()}" for name in ("DATASET", "MODEL", "CHECKPOINTS")}
    words = arguments(container, objects)
    changed = {"--rdzv-endpoint": f"127.0.0.1:{port}", "--steps": "2", "--save-every": "2"}
    assert changed.keys() <= {word.partition("=")[0] for word in words}
    options = (word.partition("=") for word in words)
    filled = [name + equals + changed.get(name, value) for name, equals, value in options]
    return [sys.executable, str(K8S / "images" / "launch.py"), *filled, "--from-scratch"]


@pytest.mark.cluster
@pytest.mark.usefixtures("can_confine")
def test_two_pods_train_and_save_as_in_a_cluster(
    training_volume: Path, rendered: Callable[[str], list[Object]]
) -> None:
    """Fails when torchrun, a loader's worker or a checkpoint needs root, or writes outside /tmp and the volumes."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = trainer_words(rendered("local/train"), port)
    nodes = [confined(words, training_volume, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo") for _ in range(2)]
    said = [node.communicate(timeout=240)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], "\n".join(said)
    saved = training_volume / "checkpoints" / "job"
    assert [folder.name for folder in saved.iterdir()], "nothing was saved"
    assert all(path.stat().st_uid == 10001 for path in saved.rglob("*"))
