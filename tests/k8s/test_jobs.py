"""Whole jobs as pods run them: the script that packs, on Ray, and then a step of training from what it packed."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from confined import WRITABLE, confined
from manifests import K8S

from packer_service.verify import verify_dataset

SCRIPT = K8S / "components" / "pack" / "pack.sh"


@pytest.fixture(scope="module")
def volume(tmp_path_factory: pytest.TempPathFactory, tiny_source: Path) -> Path:
    """What is mounted into the pods: the source, and the script with its configuration beside it."""
    folder = tmp_path_factory.mktemp("volume")
    shutil.copytree(tiny_source, folder / "tiny")
    folder.chmod(0o1777)
    text = SCRIPT.read_text(encoding="utf-8")
    assert "/etc/preshard/" in text
    program = folder / "preshard"  # the environment's own may be closed to other users
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m packer_service "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    (folder / "pack.sh").write_text(text.replace("/etc/preshard/", f"{SCRIPT.parent}/"), encoding="utf-8")
    return folder


@pytest.mark.cluster
@pytest.mark.usefixtures("can_confine")
def test_a_whole_job_packs_as_in_a_pod(volume: Path, progress: Any) -> None:
    """Fails when Ray, a decoder or a compiled loop needs root, or writes outside /tmp and the volumes."""
    places = {"SOURCE": f"{WRITABLE}/tiny", "DATASET": f"{WRITABLE}/dataset", "PRESHARD_PAUSE": "0"}
    process = confined(["sh", f"{WRITABLE}/pack.sh"], volume, PATH=f"{WRITABLE}:/usr/bin:/bin", **places)
    _, said = process.communicate(timeout=240)
    assert process.returncode == 0, said
    assert verify_dataset(str(volume / "dataset"), progress=progress).sound
