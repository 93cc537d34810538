"""Workers that differ from the driver's machine, on a second node: none packs a row, and a line says what to do."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from page import PackOn
from process_trees import kill_tree
from ray_nodes import Machine, Node, ray_node, shards

from preshard.packer_service.demo.model import write_model_folder
from preshard.schemas import VERSION

pytestmark = pytest.mark.cluster


@dataclass(frozen=True, kw_only=True)
class Blind(Machine):
    """A machine that finds one folder empty, as where a share is not mounted."""

    hidden: Path

    @property
    def python(self) -> str:
        script = self.folder / "blind-python"
        if not script.exists():
            own, real = f"mount --make-rprivate / && mount -t tmpfs none {self.hidden}", super().python
            script.write_text(f'#!/bin/sh\nexec unshare -m sh -c \'{own} && exec {real} "$@"\' sh "$@"\n')
            script.chmod(0o755)
        return str(script)


@dataclass(frozen=True, kw_only=True)
class Given:
    """Parts that a case may spoil: the machine, and the places of the job."""

    machine: Machine
    folder: Path
    source: Path
    out: Path


@contextmanager
def other_code(given: Given, head: Node) -> Iterator[None]:
    [installed] = (given.machine.folder / "python").glob("lib/python*/site-packages/preshard")
    copy = given.folder / "other"
    shutil.copytree(installed, copy / "preshard", symlinks=False)
    changed = copy / "preshard" / "packer_service" / "ingest" / "render.py"
    changed.write_text(changed.read_text(encoding="utf-8") + "\n# changed\n", encoding="utf-8")
    with ray_node(given.machine, head.address, num_cpus=1, ip="127.0.0.2", bare=True, PYTHONPATH=str(copy)):
        yield


@contextmanager
def other_pillow(given: Given, head: Node) -> Iterator[None]:
    found = given.folder / "pillow"
    (found / "pillow-0.1.dist-info").mkdir(parents=True)
    (found / "pillow-0.1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: pillow\nVersion: 0.1\n")
    with ray_node(given.machine, head.address, num_cpus=1, ip="127.0.0.2", bare=True, PYTHONPATH=str(found)):
        yield


def unseen(place: Callable[[Given], Path]) -> Callable[[Given, Node], object]:
    """A node that does not see a folder."""

    @contextmanager
    def join(given: Given, head: Node) -> Iterator[None]:
        place(given).mkdir(exist_ok=True)
        blind = Blind(folder=given.machine.folder, hidden=place(given))
        with ray_node(blind, head.address, num_cpus=1, ip="127.0.0.2", bare=True):
            yield
        (given.machine.folder / "blind-python").unlink()

    return join


CASES = {
    "another .py": (other_code, f"preshard {VERSION} with other code (SHA-256 "),
    "another Pillow": (other_pillow, "pillow 0.1, the driver has "),
    "an output of its own": (unseen(lambda given: given.out), "--out {out}: is not the folder that the driver sees"),
    "no media": (unseen(lambda given: given.source / "images"), "the folder of media {source}/images/0.png: is not"),
    "no model": (
        unseen(lambda given: given.folder / "model"),
        "tokenizer {folder}/model/chat_template.jinja: is not there",
    ),
}


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Iterator[tuple[Machine, Node]]:
    """A head that runs no task, as docs/cluster.md has it."""
    machine = Machine.make(tmp_path_factory.mktemp("nodes") / "machine")
    machine.install(wheel)
    with ray_node(machine, num_cpus=0, bare=True) as node:
        yield machine, node


@pytest.fixture
def given(head: tuple[Machine, Node], tmp_path: Path, tiny_source: Path) -> Given:
    """A job of a source with pictures in a folder, and a folder of a model's files."""
    source = tmp_path / "tiny"  # labels of rows begin with its name
    shutil.copytree(tiny_source, source)
    (source / "images").mkdir()
    for picture in source.glob("*.png"):
        shutil.copy(picture, source / "images")
    (tmp_path / "model").mkdir()
    return Given(machine=head[0], folder=tmp_path, source=source, out=tmp_path / "out")


def start(given: Given, head: Node, pack_on: PackOn, tiny_source: Path, *more: str) -> subprocess.Popen[str]:
    words = [word.replace(str(tiny_source), str(given.source)) for word in pack_on(given.machine, head, given.out)]
    environment = given.machine.environment()
    return subprocess.Popen([*words, *more], env=environment, cwd=given.folder, stderr=subprocess.PIPE, text=True)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("case", CASES)
def test_a_node_that_differs_ends_the_job_with_its_name(
    case: str, head: tuple[Machine, Node], given: Given, pack_on: PackOn, tiny_source: Path
) -> None:
    """Fails when a node packs in its own way, rejects rows for what it cannot see, or is not named."""
    if case not in ("another .py", "another Pillow") and (os.geteuid() or not shutil.which("unshare")):
        pytest.skip("hiding a folder from a node needs root and unshare")
    join, said = CASES[case]
    write_model_folder(given.folder / "model", "qwen3_vl", vocabulary=300)
    more = ["--set", f"tokenizer={given.folder / 'model'}"] if case == "no model" else []
    with join(given, head[1]), start(given, head[1], pack_on, tiny_source, *more) as driver:  # type: ignore[attr-defined]
        _, lines = driver.communicate(timeout=600)
    assert driver.returncode == 1, lines
    expected = said.format(out=given.out, source=given.source, folder=given.folder)
    assert lines.splitlines()[-1].startswith(f"preshard: node 127.0.0.2 ({os.uname().nodename}): {expected}"), lines
    assert "Traceback" not in lines
    assert not (given.out / "manifest.json").exists()


@pytest.mark.timeout(900)
def test_without_workers_the_job_says_so_and_goes_on_when_one_comes_without_the_one_that_differs(
    head: tuple[Machine, Node],
    given: Given,
    pack_on: PackOn,
    tiny_source: Path,
    same_short_bytes: Callable[[Path], bool],
) -> None:
    """Fails when a job waits in silence, runs a task on a node that was left out, or does not take a node that joins.

    It begins without a CPU, gets a node with another Pillow, then a sound one, and loses that while it writes.
    """
    given.source.joinpath("images").rename(given.folder / "images")  # the bytes are those of the source as it was
    with start(given, head[1], pack_on, tiny_source, "--skip-bad-nodes", "--wait-for-workers", "1") as driver:
        assert driver.stderr is not None
        said = [driver.stderr.readline()]
        while "waiting for workers" not in said[-1] and said[-1]:
            said.append(driver.stderr.readline())
        assert "1 node with 0 CPUs, 0 tasks running" in said[-1], "".join(said)
        with other_pillow(given, head[1]):
            while "left out node 127.0.0.2" not in said[-1] and said[-1]:
                said.append(driver.stderr.readline())
            assert said[-1], "".join(said)
            with ray_node(given.machine, head[1].address, num_cpus=1, ip="127.0.0.3", bare=True) as sound:
                while driver.poll() is None and len(shards(given.out)) < 2:
                    time.sleep(0.05)
                kill_tree(sound.process)
            _, rest = driver.communicate(timeout=600)
    assert driver.returncode == 1, rest
    assert "no task ran for 1 min" in rest.splitlines()[-1]
    assert "Traceback" not in rest
    with (
        ray_node(given.machine, head[1].address, num_cpus=1, ip="127.0.0.4", bare=True),
        start(given, head[1], pack_on, tiny_source) as driver,
    ):
        _, rest = driver.communicate(timeout=600)
    assert driver.returncode == 0, rest
    assert same_short_bytes(given.out)
