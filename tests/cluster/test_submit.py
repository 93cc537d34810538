"""``ray job submit`` as docs/cluster.md shows it: a checkout uploaded, a wheel installed, with and without a token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from page import INSTALLED, UPLOADING, command, submitted
from ray_nodes import Machine, ray_node

from preshard.packer_service.verify import verify_dataset


@pytest.mark.cluster
def test_the_working_directory_packs_the_same_bytes(
    machine: Machine, tiny_source: Path, options: list[str], same_bytes: Callable[[Path], bool], tmp_path: Path
) -> None:
    """Fails when a head does not run what the page's command uploads, or its workers do not find it."""
    out = tmp_path / "uploaded"
    with ray_node(machine, num_cpus=1) as head:
        status, said = machine.submit(head.dashboard, submitted(UPLOADING, tiny_source, out, options))
    assert status == 0, said
    assert "succeeded" in said
    assert same_bytes(out)


@pytest.mark.cluster
def test_an_installed_wheel_packs_the_same_bytes(
    machine: Machine,
    wheel: Path,
    tiny_source: Path,
    options: list[str],
    same_bytes: Callable[[Path], bool],
    progress: Any,
    tmp_path: Path,
) -> None:
    """Fails when the page's command for an image with the wheel does not pack, or hides why it failed.

    That the wheel lacks no file is also what test_head.py finds.
    """
    machine.install(wheel)
    out, nowhere = tmp_path / "installed", submitted(INSTALLED, Path("/nowhere"), tmp_path / "none", options)
    with ray_node(machine) as head:
        status, said = machine.submit(head.dashboard, submitted(INSTALLED, tiny_source, out, options))
        assert status == 0, said
        assert same_bytes(out)
        assert not verify_dataset(str(out), processes=1, progress=progress).broken

        status, said = machine.submit(head.dashboard, nowhere)
        assert status == 1
        assert "Job entrypoint command failed with exit code 2" in said
        assert "preshard: SOURCE /nowhere: no such file or folder" in said


@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_a_head_with_a_token_takes_jobs_of_those_alone_who_have_it(
    machine: Machine,
    wheel: Path,
    tiny_source: Path,
    options: list[str],
    same_bytes: Callable[[Path], bool],
    tmp_path: Path,
) -> None:
    """Fails when a job cannot be submitted to a head with token authentication, or the packing in it cannot join."""
    machine.install(wheel)
    assert machine.run(command("ray get-auth-token")).returncode == 0
    assert (machine.folder / "home" / ".ray" / "auth_token").exists()
    words = submitted(INSTALLED, tiny_source, tmp_path / "packed", options)
    with ray_node(machine, RAY_AUTH_MODE="token") as head:
        elsewhere = machine.folder / "elsewhere"
        elsewhere.mkdir()
        status, said = machine.submit(head.dashboard, words, HOME=str(elsewhere))
        assert status == 1
        assert "authentication" in said.lower(), said
        assert not (tmp_path / "packed").exists()
        status, said = machine.submit(head.dashboard, words, RAY_AUTH_MODE="token")
        assert status == 0, said
        assert same_bytes(tmp_path / "packed")
