"""The job on Ray: as a command, with one CPU and with two, and through a Ray that is there already."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from preshard.packer_service.config import load_config
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor


def command(source: Path, out: Path, settings: list[str], *more: str) -> list[str]:
    words = [word for setting in settings for word in ("--set", setting)]
    return [sys.executable, "-m", "preshard.packer_service", "pack", str(source), "--out", str(out), *words, *more]


@pytest.mark.usefixtures("ray_session")
def test_a_ray_that_is_there_is_used(
    tiny_source: Path,
    tiny_dataset: Path,
    tiny_settings: list[str],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Fails when the command needs a Ray of its own, shuts down one that it did not start, or depends on tasks' order.

    That one CPU does not wait for itself is what tests/cluster/test_head.py finds.
    """
    import ray
    from stored import file_bytes  # not above: Ray's workers import this file, and find nothing of tests/support

    from preshard.packer_service.cli import main

    with pytest.raises(SystemExit) as ended:
        main(command(tiny_source, tmp_path / "out", tiny_settings, "--max-rejects", "0.3")[3:])
    assert ended.value.code == 0
    said = capfd.readouterr()
    assert "29 documents" in said.out
    assert "starting Ray" in said.err
    assert "written shards: 2 of 2" in said.err
    assert ray.is_initialized()
    assert file_bytes(tmp_path / "out") == file_bytes(tiny_dataset)


def _full_disk(item: int) -> int:
    raise OSError(28, f"No space left on device {item}")


@pytest.mark.usefixtures("ray_session")
def test_a_failed_task_gives_its_own_reason(capfd: pytest.CaptureFixture[str]) -> None:
    """Fails when Ray's words stand where the reason should, its log of the failure is on the terminal, or the
    node is not named."""
    from preshard.packer_service.runtime.ray import TaskError, ray_cluster

    with ray_cluster(None, None) as executor, pytest.raises(TaskError) as failed:
        list(executor.run(_full_disk, [7]))
    said = (
        r"a task failed on node \S+ \(.+\) \(OSError: \[Errno 28\] No space left on device 7\); finished work is kept"
    )
    assert re.fullmatch(said, str(failed.value))
    assert "_full_disk" in "".join(failed.value.__notes__)
    assert "Exception occurred" not in capfd.readouterr().err


class Asked(Sequence[tuple[str, int]]):
    """Items that count how many of them were asked for."""

    def __init__(self, n_items: int) -> None:
        self.n_items, self.asked = n_items, 0

    def __len__(self) -> int:
        return self.n_items

    def __getitem__(self, index: Any) -> Any:
        self.asked += 1
        return f"item {index}", index * index


def _once_let_go(gate: str, item: tuple[str, int]) -> int:
    """Runs in a Ray task: those of the first window at once, the others as soon as there is a file."""
    while item[1] >= 4**2 and not Path(gate).exists():
        time.sleep(0.01)
    return item[1]


@pytest.mark.usefixtures("ray_session")
def test_ray_is_given_tasks_as_it_takes_them(tmp_path: Path) -> None:
    """Fails when all items are made before the first result, or one is lost or run twice between two windows."""
    from preshard.packer_service.runtime.ray import ray_cluster

    with ray_cluster(None, None) as executor:
        items, gate = Asked(11), tmp_path / "gate"
        results = replace(executor, window=4).run(partial(_once_let_go, str(gate)), items)
        found = dict([next(results)])
        assert items.asked <= 8, "more than two windows were given to Ray at the first result"
        gate.touch()
        rest = list(results)
        assert {**found, **dict(rest)} == {i: i * i for i in range(11)}
        assert len(rest) == 10
        assert items.asked == 11


def run_here(source: Path, out: Path, settings: list[str], progress: Any) -> None:
    pack([str(source)], str(out), load_config(None, settings), PlainExecutor(), progress)


@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    ("number", "status", "moment"),
    [(signal.SIGINT, 130, "starting Ray"), (signal.SIGTERM, 143, "planned 29 documents")],
    ids=["while its own Ray starts", "while tasks run on another's"],
)
def test_an_interrupt_says_how_to_go_on_and_the_next_run_does(
    tiny_source: Path,
    tiny_dataset: Path,
    tiny_settings: list[str],
    tmp_path: Path,
    progress: Any,
    number: signal.Signals,
    status: int,
    moment: str,
) -> None:
    """Fails when an interrupt ends in a traceback or waits for tasks, or leaves something that is taken for whole."""
    import ray
    from stored import file_bytes

    out, environment = tmp_path / "out", {**os.environ}
    if moment != "starting Ray":  # no second Ray is started only to be used
        environment["RAY_ADDRESS"] = ray.get_runtime_context().gcs_address
    words = command(tiny_source, out, tiny_settings, "--executor", "ray")
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment) as running:
        assert running.stderr is not None
        said = []
        while not said or moment not in said[-1]:
            said.append(running.stderr.readline())
            assert said[-1], f"it ended before that: {''.join(said)}"
        os.killpg(running.pid, number)  # as a terminal does, to all processes of the command
        rest = running.stderr.read()
        assert running.wait(timeout=240) == status, rest
    assert rest.splitlines()[-1] == "preshard: interrupted; run the same command again to continue"
    assert "Traceback" not in rest
    assert not (out / "manifest.json").exists()
    assert not [path for path in out.rglob(".tmp-*") if "shards" not in path.parts]
    # what a signal leaves is the same for every executor, and another Ray takes long to start
    run_here(tiny_source, out, tiny_settings, progress)
    assert file_bytes(out) == file_bytes(tiny_dataset)


def test_no_ray_at_the_address_is_one_line(
    tiny_source: Path,
    tmp_path: Path,
    tiny_settings: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Fails when a wrong cluster address ends in a traceback."""
    import ray

    from preshard.packer_service.cli import main

    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # of other tests' Ray it would take no address
    with pytest.raises(SystemExit) as ended:
        main(command(tiny_source, tmp_path / "out", tiny_settings, "--ray-address", "127.0.0.1:1")[3:])
    assert ended.value.code == 2
    said = capfd.readouterr().err
    assert "preshard: --ray-address 127.0.0.1:1: no Ray answers there" in said
    assert "Traceback" not in said
