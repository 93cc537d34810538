"""A tiny source of every kind of document, datasets packed from it; one Ray and one pool of ranks for the session."""

from __future__ import annotations

import gc
import json
import os
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from gloo_pool import GlooPool
from half_demo import write_half
from hypothesis import HealthCheck, settings
from hypothesis.internal.conjecture import providers
from kinds import SLOW_ALONE, Guard, is_last_of_group, lies_in_process_folder, longest_first, mark
from once import MadeOnce
from PIL import Image

from preshard import waiting
from preshard.packer_service.config import load_config
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.runtime.local import LocalExecutor
from preshard.packer_service.runtime.progress import NoProgress
from preshard.schemas.config import PackConfig

if TYPE_CHECKING:
    from preshard.packer_service.runtime.ray import RayExecutor

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


GUARD = Guard()

SET_ASIDE: pytest.StashKey[int] = pytest.StashKey()
"""Modules that were imported when garbage collection was last told to leave out what is there."""

# Several workers share the cores, and processes that tests start inherit this.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray's workers are nice to everything else by default, and would starve beside the tests of another worker.
os.environ.setdefault("RAY_worker_niceness", "0")
# No file of a test has to outlive a power cut, and packing a small dataset waits for the disk 54 times. Processes that
# tests start as a user would, and those that kill them, wait as ever.
os.fsync = id  # type: ignore[assignment]
# Ray would end a worker that waits while that of another job runs, and start one anew for the next test.
os.environ.setdefault("RAY_num_workers_soft_limit", "8")

# What a command says after two seconds of silence is in no test's way: the machine may be busy.
waiting.QUIET_SECONDS[False] = float("inf")

# The same examples in every run, which neither an earlier run nor the speed of the machine decides: what fails here
# fails at the desk too. `--hypothesis-profile=default` draws others, and more of them.
settings.register_profile(
    "repeatable",
    settings.default,
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[*settings.default.suppress_health_check, HealthCheck.too_slow],
)
settings.load_profile("repeatable")
# Otherwise Hypothesis draws from the constants of all our modules that the process has imported by then, which tests of
# other files decide; reading them, and choosing among them, takes some seconds of every worker.
providers._get_local_constants = lambda: providers._local_constants


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make check` does not import what it leaves out: Ray, a browser's driver and others, in every worker."""
    is_left_out = "not process" in config.option.markexpr and lies_in_process_folder(collection_path, REPOSITORY)
    return True if is_left_out else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Leaves out collecting garbage, which took a fifth of the time: nearly all that is imported here stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups, and before tests are left out by their marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    mark(items)
    config.stash[SLOW_ALONE] = {item.path for item in items} - {
        item.path for item in items if not item.get_closest_marker("slow")
    }
    if "PYTEST_XDIST_WORKER" in os.environ:
        longest_first(items)


@pytest.hookimpl(tryfirst=True)  # before xdist sends it
def pytest_warning_recorded(warning_message: warnings.WarningMessage) -> None:
    """Gives a warning of a package's own class a class of Python's: the process that hears of it would import the
    package, perhaps where it cannot, and end all workers.
    """
    if warning_message.category.__module__ != "builtins":
        warning_message.category = UserWarning
        warning_message.message = UserWarning(str(warning_message.message))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Ends a session of workers without its groups: every worker would start a Ray and a pool of ranks of its own."""
    if "PYTEST_XDIST_WORKER" in os.environ and not all("@" in item.nodeid for item in session.items):
        pytest.exit("pytest-xdist gave the tests no groups: these versions of the two do not fit", returncode=3)
    # what is imported and collected stays to the end, and each full collection would walk through all of it; the rest
    # is looked through after so many objects in place of Python's 700, which took a thirtieth of the time
    gc.freeze()
    session.config.stash[SET_ASIDE] = len(sys.modules)
    gc.set_threshold(10_000)


def end_real_time() -> None:
    """Gives every thread of this process the usual scheduling again."""
    if sys.platform == "linux" and os.sched_getscheduler(0) != os.SCHED_OTHER:
        for thread in Path("/proc/self/task").iterdir():
            with suppress(ProcessLookupError):
                os.sched_setscheduler(int(thread.name), os.SCHED_OTHER, os.sched_param(0))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    with GUARD.watch(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    with GUARD.watch(item):
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Takes back real-time scheduling, sets aside what a file has imported, and ends Ray after the last of its tests.

    SVT-AV1, run by root, puts the process that encodes under SCHED_FIFO at the highest priority: what it starts later
    inherits that, and starves everything else on the machine, the threads that it waits for included. An idle Ray would
    take processor time from all others, and break in forks.
    """
    yield
    end_real_time()
    if (nextitem is None or nextitem.path != item.path) and len(sys.modules) > item.config.stash[SET_ASIDE]:
        # each of some hundred commands that fail collects, and would walk through all that was imported since: 0.3 s
        gc.collect()
        gc.freeze()
        item.config.stash[SET_ASIDE] = len(sys.modules)
    if is_last_of_group("ray", item, nextitem):
        import ray

        ray.shutdown()


@pytest.fixture(scope="session")
def made_once(tmp_path_factory: pytest.TempPathFactory) -> MadeOnce:
    """``made_once("name", make)``: a folder that ``make(folder)`` fills once in a run, for all workers. Read only."""
    return MadeOnce(tmp_path_factory.getbasetemp())


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


@pytest.fixture(scope="session")
def progress() -> NoProgress:
    return NoProgress()


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
        dict(rows[1]),
        {"id": "bad-empty", "source": "text", "text": " "},
        {"id": "bad-missing", "source": "images", "messages": _turns([_image("nowhere.png")], "x")},
        {"id": "bad-image", "source": "images", "messages": _turns([_image("zero.png")], "x")},
        {"id": "bad-long", "source": "text", "text": "word " * 2000},
        {"id": "bad-many", "source": "images", "messages": _turns([_image("0.png")] * 25, "x")},
        {"id": "bad-part", "source": "images", "messages": _turns([{"type": "audio", "audio": "x.wav"}], "x")},
    ]
    return rows


TINY_REJECTS = {
    "text-1": "duplicate_row",
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
def tiny_source(made_once: MadeOnce) -> Path:
    """A folder with a JSON Lines file and the images it names: 29 good documents and the rejects of TINY_REJECTS."""
    return made_once("source", lambda folder: _write_tiny_source(folder / "tiny")) / "tiny"


def _write_tiny_source(folder: Path) -> None:
    folder.mkdir()
    noise = np.random.default_rng(0)
    for i in range(4):
        Image.fromarray(noise.integers(0, 255, (40 + 30 * i, 90, 3), np.uint8)).save(folder / f"{i}.png")
    (folder / "zero.png").write_bytes(b"")
    lines = [json.dumps(row) for row in _rows()]
    (folder / "rows.jsonl").write_text("\n".join([*lines, "{not json", ""]), encoding="utf-8")


@pytest.fixture(scope="session")
def tiny_dataset(made_once: MadeOnce, tiny_source: Path, tiny_config: PackConfig, progress: NoProgress) -> Path:
    """The tiny source packed in one process. Read only: copy it before changing anything."""

    def make(folder: Path) -> None:
        pack([str(tiny_source)], str(folder / "dataset"), tiny_config, PlainExecutor(), progress)

    return made_once("tiny", make) / "dataset"


@pytest.fixture(scope="session")
def wheel(made_once: MadeOnce) -> Path:
    """The project's wheel, built from the files and links that git tracks."""
    [built] = made_once("wheel", _build_wheel).glob("preshard-*.whl")
    return built


def _build_wheel(folder: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=REPOSITORY, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        if (REPOSITORY / name).is_file() or (REPOSITORY / name).is_symlink():
            target = folder / "source" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(REPOSITORY / name, target, follow_symlinks=False)
    build = ["wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run(
        [sys.executable, "-m", "pip", *build, "--wheel-dir", str(folder), str(folder / "source")], check=True
    )


@pytest.fixture(scope="session")
def demo(made_once: MadeOnce) -> tuple[Path, dict[str, int], list[str]]:
    """The demo source: its folder, its counts, and the lines printed while it was made."""
    from preshard.packer_service.demo.source import write_demo_source

    def make(folder: Path) -> None:
        lines: list[str] = []
        counts = write_demo_source(folder / "source", log=lines.append)
        (folder / "printed.json").write_text(json.dumps([counts, lines]), encoding="utf-8")

    folder = made_once("demo", make)
    counts, lines = json.loads((folder / "printed.json").read_text(encoding="utf-8"))
    return folder / "source", counts, lines


@contextmanager
def _started_ray(num_cpus: int | None) -> Iterator[RayExecutor]:
    """A Ray on this machine, tried three times: Ray gives its own start 30 s, too few on a very busy machine."""
    import ray

    from preshard.packer_service.runtime.ray import RayLostError, ray_cluster

    with ExitStack() as stack, pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "preshard.packer_service.runtime.ray.START_SECONDS", 240.0
        )  # after which it would end this process
        for tries_left in (2, 1, 0):
            try:
                executor = stack.enter_context(ray_cluster(None, num_cpus))
                break
            except RayLostError:
                if not tries_left:
                    raise
                ray.shutdown()
        yield executor


@pytest.fixture(scope="session")
def ray_session() -> Iterator[None]:
    """One Ray with two CPUs for all tests that need it. It starts as that of a job."""
    with _started_ray(2):
        yield


@pytest.fixture(scope="session")
def demo_dataset(
    made_once: MadeOnce,
    demo: tuple[Path, dict[str, int], list[str]],
    progress: NoProgress,
) -> Path:
    """Half of the demo ``source``, beside it, packed as `make demo` does it. Read only: copy it to change it."""

    def make(folder: Path) -> None:
        source = write_half(demo[0], folder)
        with LocalExecutor() as executor:
            pack([str(source)], str(folder / "dataset"), PackConfig(packs_per_shard=2), executor, progress)

    return made_once("demo-dataset", make) / "dataset"


@pytest.fixture(scope="session")
def gloo_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GlooPool]:
    """``gloo_pool.run(function, *args, ulysses=2, ring=2)``: a function on several ranks, without starting them."""
    pool = GlooPool(tmp_path_factory.mktemp("gloo"))
    yield pool
    pool.close()
