"""``ray job submit`` against a real head: a working directory uploaded, a wheel installed, with and without a token."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ray_nodes import Machine, Node, ray_node

from packer_service.verify import verify_dataset

RAY = [str(Path(sys.executable).with_name("ray"))]


def submit(machine: Machine, head: Node, *arguments: str, **variables: str) -> tuple[int, str]:
    """Exit status and words of ``ray job submit``."""
    done = machine.run([*RAY, "job", "submit", "--address", str(head.dashboard), *arguments], **variables)
    return done.returncode, done.stdout + done.stderr


def test_the_working_directory_and_the_wheel_pack_the_same_bytes(
    machine: Machine,
    wheel: Path,
    pack_arguments: list[str],
    same_bytes: Callable[[Path], bool],
    progress: Any,
    tmp_path: Path,
) -> None:
    """Fails when the how-to's commands do not pack, when what is uploaded misses a file or is megabytes of what packing
    does not need, or when the wheel lacks a file.
    """
    with ray_node(machine) as head:
        uploaded = ["--working-dir", ".", "--", "python", "-m", "packer_service", *pack_arguments]
        status, said = submit(machine, head, *uploaded, str(tmp_path / "uploaded"))
        assert status == 0, said
        assert "succeeded" in said
        assert same_bytes(tmp_path / "uploaded")
        assert machine.run([machine.python, "-P", "-c", "import packer_service"]).returncode, "not from the upload"

        machine.install(wheel)
        status, said = submit(machine, head, "--", "preshard", *pack_arguments, str(tmp_path / "installed"))
        assert status == 0, said
        assert same_bytes(tmp_path / "installed")
        assert not verify_dataset(str(tmp_path / "installed"), processes=1, progress=progress).broken

        nowhere = submit(machine, head, "--", "preshard", "pack", "/nowhere", "--out", str(tmp_path / "none"))
        assert nowhere[0] == 1
        assert "exit code 2" in nowhere[1]
        assert "/nowhere" in nowhere[1]


def test_a_head_with_a_token_takes_jobs_of_those_alone_who_have_it(
    machine: Machine, wheel: Path, pack_arguments: list[str], same_bytes: Callable[[Path], bool], tmp_path: Path
) -> None:
    """Fails when a job cannot be submitted to a head with token authentication, or the packing in it cannot join."""
    machine.install(wheel)
    token = machine.folder / "home" / ".ray" / "auth_token"
    token.parent.mkdir()
    token.write_text("a" * 64, encoding="utf-8")
    with ray_node(machine, RAY_AUTH_MODE="token") as head:
        elsewhere = machine.folder / "elsewhere"
        elsewhere.mkdir()
        status, said = submit(machine, head, "--", "preshard", "--version", HOME=str(elsewhere))
        assert status != 0
        assert "authentication" in said.lower(), said
        command = ["--", "preshard", *pack_arguments, str(tmp_path / "packed")]
        status, said = submit(machine, head, *command, RAY_AUTH_MODE="token")
        assert status == 0, f"{shlex.join(command)}\n{said}"
        assert same_bytes(tmp_path / "packed")
