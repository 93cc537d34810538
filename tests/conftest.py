"""A tiny source of every kind of document, datasets packed from it; one Ray and one pool of ranks for the session."""

from __future__ import annotations

import json
import math
import os
import pickle
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from packer_service.config import load_config
from packer_service.job.pack import pack
from packer_service.runtime.executors import PlainExecutor
from schemas.config import PackConfig

REPOSITORY = Path(__file__).parents[1]

TINY_SETTINGS = [
    "seq_len=1024",
    "block_size=32",
    "vision.image_size=56",
    "vision.pool_size=2",
    "max_images=24",
    "packs_per_shard=2",
    "order.window=4",
]


class StoppingExecutor(PlainExecutor):
    """Stops the job after a number of tasks, and counts those it ran by their functions."""

    class Stopped(Exception):  # noqa: N818 (no error: it stands for a kill)
        """Stands for a kill."""

    def __init__(self, after: int) -> None:
        self.left = after
        self.ran: Counter[str] = Counter()

    def run(self, function: Callable[..., Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        for index, item in enumerate(items):
            if not self.left:
                raise self.Stopped
            self.left -= 1
            self.ran[function.func.__name__] += 1  # type: ignore[attr-defined]
            yield index, function(item)


@pytest.fixture(scope="session")
def stopping() -> type[StoppingExecutor]:
    """``stopping(2)`` stops a job after two tasks with a ``stopping.Stopped``."""
    return StoppingExecutor


class Silent:
    """A progress that says nothing."""

    def note(self, message: str) -> None: ...

    def step(self, what: str, done: int, total: int, amounts: object = None) -> None: ...


@pytest.fixture(scope="session")
def progress() -> Silent:
    return Silent()


@pytest.fixture(scope="session")
def tiny_config() -> PackConfig:
    return load_config(None, TINY_SETTINGS)


@pytest.fixture(scope="session")
def tiny_settings() -> list[str]:
    return list(TINY_SETTINGS)


def _turns(question: list[Any] | str, answer: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _image(name: str) -> dict[str, str]:
    return {"type": "image", "image": name}


def _rows() -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {"id": f"text-{i}", "source": "text", "text": f"line {i}. " * (3 + 11 * i)} for i in range(12)
    ]
    rows += [
        {
            "id": f"question-{i}",
            "source": "images",
            "messages": _turns(
                [*(_image(f"{j % 4}.png") for j in range(1 + i % 5)), {"type": "text", "text": "?"}], f"{i}"
            ),
        }
        for i in range(12)
    ]
    rows += [
        {
            "id": f"annotated-{i}",
            "source": "annotated",
            "media": [_image("1.png"), _image("2.png")],
            "annotations": [_turns(f"question {k}", f"answer {k} " * (k + 1)) for k in range(1 + i)],
        }
        for i in range(4)
    ]
    rows += [
        {"text": "without an id"},
        {"id": "text-1", "text": "the same id again"},
        {"id": "bad-empty", "source": "text", "text": " "},
        {"id": "bad-missing", "source": "images", "messages": _turns([_image("nowhere.png")], "x")},
        {"id": "bad-image", "source": "images", "messages": _turns([_image("zero.png")], "x")},
        {"id": "bad-long", "source": "text", "text": "word " * 2000},
        {"id": "bad-many", "source": "images", "messages": _turns([_image("0.png")] * 25, "x")},
        {"id": "bad-part", "source": "images", "messages": _turns([{"type": "audio", "audio": "x.wav"}], "x")},
    ]
    return rows


TINY_REJECTS = {
    "text-1": "duplicate_id",
    "bad-empty": "empty",
    "bad-missing": "missing_media",
    "bad-image": "bad_image",
    "bad-long": "too_long",
    "bad-many": "too_many_images",
    "bad-part": "bad_row",
    "tiny/rows.jsonl:37": "bad_row",
}


@pytest.fixture(scope="session")
def tiny_rejects() -> dict[str, str]:
    """Code of every document of the tiny source that must be rejected."""
    return dict(TINY_REJECTS)


@pytest.fixture(scope="session")
def tiny_source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a JSON Lines file and the images it names: 29 good documents and the rejects of TINY_REJECTS."""
    folder = tmp_path_factory.mktemp("source") / "tiny"
    folder.mkdir()
    noise = np.random.default_rng(0)
    for i in range(4):
        Image.fromarray(noise.integers(0, 255, (40 + 30 * i, 90, 3), np.uint8)).save(folder / f"{i}.png")
    (folder / "zero.png").write_bytes(b"")
    lines = [json.dumps(row) for row in _rows()]
    (folder / "rows.jsonl").write_text("\n".join([*lines, "{not json", ""]), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def tiny_dataset(
    tmp_path_factory: pytest.TempPathFactory, tiny_source: Path, tiny_config: PackConfig, progress: Silent
) -> Path:
    """The tiny source packed in this process. Read only: copy it before changing anything."""
    out = tmp_path_factory.mktemp("packed") / "dataset"
    pack([str(tiny_source)], str(out), tiny_config, PlainExecutor(), progress)
    return out


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project's wheel, built from the files that git tracks."""
    folder = tmp_path_factory.mktemp("wheel")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        if (REPOSITORY / name).is_file():
            target = folder / "source" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((REPOSITORY / name).read_bytes())
    build = ["wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run(
        [sys.executable, "-m", "pip", *build, "--wheel-dir", str(folder), str(folder / "source")], check=True
    )
    [built] = folder.glob("preshard-*.whl")
    return built


@pytest.fixture(scope="session")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int], list[str]]:
    """The demo source: its folder, its counts, and what was said while it was made."""
    from packer_service.demo.source import write_demo_source

    folder = tmp_path_factory.mktemp("demo") / "source"
    said: list[str] = []
    return folder, write_demo_source(folder, log=said.append), said


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One Ray with two CPUs for all tests that need it."""
    import ray

    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def demo_dataset(
    tmp_path_factory: pytest.TempPathFactory,
    demo: tuple[Path, dict[str, int], list[str]],
    ray_session: None,
    progress: Silent,
) -> Path:
    """The demo source packed on Ray as `make demo` does it. Read only: copy it before changing anything."""
    from packer_service.job.pack import pack
    from packer_service.runtime.ray import ray_cluster

    out = tmp_path_factory.mktemp("demo") / "dataset"
    with ray_cluster(None, None) as executor:
        pack([str(demo[0])], str(out), PackConfig(packs_per_shard=4), executor, progress)
    return out


class GlooPool:
    """Long-lived processes, each a rank with one thread, so that a distributed example costs no process start."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._worlds, self._store, self._size = folder, 0, "", 0
        self._workers: list[tuple[subprocess.Popen[bytes], Connection]] = []

    def run(
        self,
        function: Callable[..., Any],
        *args: Any,
        ulysses: int = 1,
        ring: int = 1,
        dp_shard: int = 1,
        dp_replicate: int = 1,
    ) -> list[Any]:
        """``function(mesh, *args)`` on every rank of a ``Mesh`` of these degrees; results in rank order.

        The default process group is a gloo world of just these ranks. The function is a top-level one of a test file
        or a conftest; arguments and results are plain values, arrays and tensors.

        Raises:
            AssertionError: a rank raised, with its traceback. The next run starts afresh.
        """
        degrees = (dp_replicate, dp_shard, ring, ulysses)
        size = math.prod(degrees)
        while len(self._workers) < size:
            self._workers.append(self._start())
        if size != self._size:
            self._worlds, self._size = self._worlds + 1, size
            self._store = str(self._folder / f"store-{self._worlds}")
        code = function.__code__
        pipes = [pipe for _, pipe in self._workers[:size]]
        for rank, pipe in enumerate(pipes):
            task = (code.co_filename, function.__name__, self._store, rank, degrees, args)
            pipe.send_bytes(pickle.dumps(task))
        answers = self._collect(pipes)
        failed = {pipes.index(pipe): said for pipe, (good, said) in answers.items() if not good}
        if failed or len(answers) < size:
            self.close()
            said = "\n".join(f"rank {rank} of {size} failed:\n{text}" for rank, text in sorted(failed.items()))
            raise AssertionError(said or f"only {len(answers)} of {size} ranks answered")
        return [answers[pipe][1] for pipe in pipes]

    def _collect(self, pipes: list[Connection]) -> dict[Connection, tuple[bool, Any]]:
        """What each rank said; after a failure the others, who may wait for it, get a few seconds more."""
        answers: dict[Connection, tuple[bool, Any]] = {}
        patience = 240.0
        while len(answers) < len(pipes):
            ready = wait([pipe for pipe in pipes if pipe not in answers], timeout=patience)
            if not ready:
                break
            for pipe in ready:
                assert isinstance(pipe, Connection)
                try:
                    answers[pipe] = pickle.loads(pipe.recv_bytes())
                except EOFError:
                    answers[pipe] = (False, "the process has gone")
                if not answers[pipe][0]:
                    patience = 2.0
        return answers

    def _start(self) -> tuple[subprocess.Popen[bytes], Connection]:
        ours, theirs = Pipe()
        worker = Path(__file__).with_name("gloo_worker.py")
        process = subprocess.Popen(
            # Without -P the folder of the tests would stand first in sys.path, with folders named as our packages.
            [sys.executable, "-P", str(worker), str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"},
        )
        theirs.close()
        return process, ours

    def close(self) -> None:
        """End all processes."""
        for process, pipe in self._workers:
            pipe.close()
            process.kill()
            process.wait()
        self._workers, self._size = [], 0


@pytest.fixture(scope="session")
def gloo_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GlooPool]:
    """``gloo_pool.run(function, *args, ulysses=2, ring=2)``: a function on several ranks, without starting them."""
    pool = GlooPool(tmp_path_factory.mktemp("gloo"))
    yield pool
    pool.close()
