"""The job without Ray: in this process and in helpers beside it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from stored import file_bytes

from preshard.packer_service.cli import main
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime import local
from preshard.packer_service.runtime.executors import TaskError
from preshard.packer_service.runtime.local import LocalExecutor, choose_executor
from preshard.schemas.config import PackConfig
from preshard.schemas.errors import ConfigError

LONGEST_WAIT = 60.0
"""Seconds that a task waits for another process, which imports for some of them on a busy machine."""


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Helpers start with the first task, and find the functions of this file."""
    monkeypatch.setattr(local, "HEAD_START", 0.0)
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))


def _together(folder: str, killed: bool, item: int) -> tuple[int, int]:
    """Runs in a task: returns once two processes have one. A helper is killed in its first task if it is to be."""
    mine = Path(folder) / str(os.getpid())
    is_new = not mine.exists()
    mine.touch()
    is_helper = os.getpid() != int((Path(folder).parent / "main").read_text())
    if killed and is_new and is_helper and not (Path(folder).parent / "killed").exists():
        (Path(folder).parent / "killed").write_text(str(item))
        os.kill(os.getpid(), signal.SIGKILL)
    end = time.monotonic() + LONGEST_WAIT
    while len(list(Path(folder).iterdir())) < 2 + killed:
        assert time.monotonic() < end, "there is no other process"
        time.sleep(0.01)
    return item, os.getpid()


@pytest.mark.usefixtures("at_once")
@pytest.mark.parametrize("killed", [False, True], ids=["undisturbed", "one is killed"])
def test_helpers_run_tasks_beside_this_process(tmp_path: Path, killed: bool) -> None:
    """Fails when one process does all, a task is lost or run twice, or a killed helper takes the job with it."""
    (tmp_path / "seen").mkdir()
    (tmp_path / "main").write_text(str(os.getpid()))
    with LocalExecutor(2) as executor:
        found = list(executor.run(partial(_together, str(tmp_path / "seen"), killed), range(6)))
        helpers = {pid for _, (_, pid) in found} - {os.getpid()}
        assert sorted(index for index, _ in found) == list(range(6))
        assert all(index == item for index, (item, _) in found)
        assert (tmp_path / "killed").exists() == killed
        # the next run has the same helper, which needs to import nothing
        again = {pid for _, (_, pid) in executor.run(partial(_together, str(tmp_path / "seen"), False), range(6))}
        assert helpers
        assert again <= {os.getpid(), *helpers}
    for pid in helpers:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def _fails_in_helpers(main: int, item: int) -> int:
    if os.getpid() != main:
        raise OSError(28, f"No space left on device {item}")
    time.sleep(0.05)
    return item


@pytest.mark.usefixtures("at_once")
def test_a_failed_task_gives_its_reason_wherever_it_ran() -> None:
    """Fails when the reason is lost between processes, or differs from that of a task in this one."""
    with LocalExecutor(2) as executor:
        for main in (0, os.getpid()):  # in this process at once, or in the helper as soon as there is one
            with pytest.raises(TaskError) as failed:
                list(executor.run(partial(_fails_in_helpers, main), range(10_000)))
            assert str(failed.value).startswith("a task failed (OSError: [Errno 28] No space left on device")
            assert str(failed.value).endswith("); finished work is kept")
            assert "_fails_in_helpers" in "".join(failed.value.__notes__)


@pytest.mark.usefixtures("at_once")
def test_the_bytes_are_those_of_one_process(
    tiny_source: Path, tiny_dataset: Path, tiny_config: PackConfig, tmp_path: Path, progress: Any
) -> None:
    """Fails when a byte depends on which process made it. tests/runtime/test_ray.py compares Ray's with the same."""
    with LocalExecutor(3) as executor:
        pack([str(tiny_source)], str(tmp_path / "out"), tiny_config, executor, progress)
    assert file_bytes(tmp_path / "out") == file_bytes(tiny_dataset)


WITHOUT_RAY = """
import sys
sys.modules["ray"] = None
from preshard.packer_service.cli import main
main(sys.argv[1:])
"""


def test_the_command_packs_where_there_is_no_ray_and_goes_on(
    tmp_path: Path, tiny_settings: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Fails when a small source needs Ray, or SIGTERM ends such a job in another way than one on Ray."""
    rows = [{"id": f"r{i}", "text": f"row {i} " * 30} for i in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["pack", str(tmp_path / "rows.jsonl"), "--out", str(tmp_path / "out")]
    words += [word for setting in tiny_settings for word in ("--set", setting)]
    command = [sys.executable, "-c", WITHOUT_RAY, *words]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as running:
        assert running.stderr is not None
        said = [running.stderr.readline()]
        while "planned" not in said[-1]:
            said.append(running.stderr.readline())
            assert said[-1], f"it ended before that: {''.join(said)}"
        running.terminate()
        assert running.stderr.read().splitlines()[-1] == "preshard: interrupted; run the same command again to continue"
        assert running.wait() == 143
    with pytest.raises(SystemExit) as ended:
        main([*words, "--executor", "local"])
    assert ended.value.code == 0
    again = capsys.readouterr()
    assert "40 documents" in again.out
    assert "found the plan of an earlier run" in again.err


@pytest.mark.parametrize(
    ("kind", "address", "environment", "is_local"),
    [
        ("auto", None, "", True),
        ("auto", "head:6379", "", False),
        ("auto", None, "head:6379", False),
        ("local", None, "head:6379", True),
        ("ray", None, "", False),
    ],
)
def test_an_address_decides_where_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch, progress: Any, kind: str, address: str | None, environment: str, is_local: bool
) -> None:
    """Fails when a job of a cluster runs on its head alone, or a small one starts Ray."""
    monkeypatch.setenv("RAY_ADDRESS", environment)
    monkeypatch.setattr(local, "_has_ray", lambda: False)
    with choose_executor(kind, address, 1, progress) as executor:
        assert isinstance(executor, LocalExecutor) == is_local


@pytest.mark.parametrize("words", [("spark", None), ("local", "auto")])
def test_a_wrong_executor_is_one_line(progress: Any, words: tuple[str, str | None]) -> None:
    """Fails when an address is ignored, or a typo runs the tasks somewhere."""
    with pytest.raises(ConfigError, match=r"legal are auto, local, ray|leave one of them out"):
        choose_executor(*words, None, progress).__enter__()


@pytest.mark.parametrize(("quota", "cpus"), [("200000 100000", 2), ("50000 100000", 1), ("max 100000", 64)])
def test_a_container_has_its_share_of_the_cpus(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, cpus: int
) -> None:
    """Fails when a container of two CPUs on a large machine starts a process for each CPU of the machine."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    monkeypatch.setattr(local, "CPU_QUOTA", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(quota)
    assert local.count_cpus() == cpus
