"""Ray nodes as processes of our own, beside whatever other Ray runs on this machine."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from free_ports import free_ports
from process_trees import stop_tree

REPOSITORY = Path(__file__).parents[2]
QUICK = {
    # A node that is killed shall be missed within seconds; Ray's own values take half a minute.
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "4",
    # Workers that wait for a first driver are not those of a job with a working directory of its own.
    "RAY_prestart_worker_first_driver": "0",
}


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A Python of its own with what this project depends on and without the project, and a home of its own."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> Machine:
        machine = cls(folder=folder)
        venv.create(folder / "python", with_pip=False)
        [site] = (folder / "python").glob("lib/python*/site-packages")
        # The .pth files of the folder that is added are not read, and so no editable install of the project is found.
        installed = importlib.util.find_spec("ray")  # in the folder with all others; importing it takes two seconds
        assert installed is not None
        assert installed.origin is not None
        site.joinpath("dependencies.pth").write_text(str(Path(installed.origin).parents[1]), encoding="utf-8")
        (folder / "home").mkdir()
        return machine

    @property
    def python(self) -> str:
        return str(self.folder / "python" / "bin" / "python")

    def environment(self, **more: str) -> dict[str, str]:
        """The environment after a login there: nothing of the tests' own virtual environment, nor of another Ray.

        Loops are not compiled: on a fresh machine each worker spends 17 s on that, more than on a tiny pack without.
        """
        kept = {name: os.environ[name] for name in ("LANG", "LC_ALL", "TMPDIR") if name in os.environ}
        path = f"{Path(self.python).parent}:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"
        home = {"HOME": str(self.folder / "home"), "PATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
        return {**kept, **home, "OMP_NUM_THREADS": "1", "NUMBA_DISABLE_JIT": "1", **more}

    def run(
        self, command: Sequence[str], folder: Path = REPOSITORY, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """A command in a folder, by default the repository's."""
        return subprocess.run(
            list(command),
            cwd=folder,
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def submit(
        self, dashboard: str, job: Sequence[str], folder: Path = REPOSITORY, **variables: str
    ) -> tuple[int, str]:
        """Exit status and words of a command of the page that submits a job to the dashboard at an address."""
        done = self.run([dashboard if word == "http://HEAD:8265" else word for word in job], folder, **variables)
        return done.returncode, done.stdout + done.stderr

    def install(self, wheel: Path) -> None:
        """Installs a wheel, its dependencies being there."""
        quiet = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-compile"]
        subprocess.run(
            [sys.executable, "-m", "pip", "--python", self.python, "install", *quiet, str(wheel)], check=True
        )


class ThisMachine(Machine):
    """The Python and the environment of the tests, with what a Ray that they have started put there."""

    @property
    def python(self) -> str:
        return sys.executable

    def environment(self, **more: str) -> dict[str, str]:
        return {**os.environ, **more}


@dataclass(frozen=True, kw_only=True)
class Node:
    """A running ``ray start --block`` and where it listens."""

    process: subprocess.Popen[bytes]
    address: str
    dashboard: str
    """Nothing answers there where it was started without one."""


@contextmanager
def ray_node(
    machine: Machine,
    head: str | None = None,
    *,
    num_cpus: int = 2,
    ip: str = "127.0.0.1",
    bare: bool = False,
    **variables: str,
) -> Iterator[Node]:
    """A head, or a node that joins the one at the address ``head``, on ports of its own.

    Args:
        machine: where it runs.
        head: what it joins; it becomes a head itself without one.
        num_cpus: of the node.
        ip: its address; a second node of this machine needs another one.
        bare: whether to start only what tasks need: no dashboard, to which jobs are submitted, no autoscaler, and
            nothing that carries logs.
        **variables: of its environment.
    """
    port, dashboard, client, agent = free_ports(4)
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))  # a path of sockets may have 107 bytes
    given = ["--block", "--disable-usage-stats", f"--num-cpus={num_cpus}", "--object-store-memory=200000000"]
    given += ["--min-worker-port=0", "--max-worker-port=0", f"--dashboard-agent-listen-port={agent}"]
    given += [f"--node-ip-address={ip}"]
    if head is None:
        given += ["--head", f"--port={port}", f"--dashboard-port={dashboard}", f"--temp-dir={folder}"]
        given += [f"--ray-client-server-port={client}"]
        given += ["--include-dashboard=false", "--no-monitor"] if bare else []
    else:
        given += [f"--address={head}"]
    given += ["--include-log-monitor=false"] if bare else []
    command = [machine.python, "-m", "ray.scripts.scripts", "start", *given]
    with (folder / "said").open("wb") as said:
        process = subprocess.Popen(
            command, cwd=folder, env=machine.environment(**QUICK, **variables), stdout=said, stderr=said
        )
    address = head or f"127.0.0.1:{port}"
    node = Node(process=process, address=address, dashboard=f"http://127.0.0.1:{dashboard}")
    try:
        _wait_until_started(node, folder / "said")
        yield node
    finally:
        stop_tree(process)
        shutil.rmtree(folder, ignore_errors=True)


def _wait_until_started(node: Node, said: Path) -> None:
    deadline = time.monotonic() + 300
    while "Ray runtime started" not in said.read_text(errors="replace"):
        assert node.process.poll() is None, said.read_text(errors="replace")
        assert time.monotonic() < deadline, said.read_text(errors="replace")
        time.sleep(0.1)


def shards(out: Path) -> list[Path]:
    """Shards of a dataset that have their names."""
    return list(out.glob("shards/preshard-*.tar"))
