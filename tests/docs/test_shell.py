"""The shell blocks of the pages, run in their order, each page in a folder of its own, beside what the pages show."""

from __future__ import annotations

import io
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

import pytest
from free_ports import free_ports

sys.path.insert(0, str(Path(__file__).parent))

from given import GIVEN, OF_THE_DEMO, SLOW_GIVEN
from shell import ROOT, Block, Command, blocks, first_difference

from preshard.packer_service.cli import main

PAGES = ["README.md", *sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md"))]


@dataclass(frozen=True, kw_only=True)
class Run:
    """Way to run a block: ``instead`` of what, by patterns, and what of it is said to be slow."""

    slow: bool = False
    instead: tuple[tuple[str, str], ...] = ()

    def here(self, command: str) -> str:
        for pattern, other in self.instead:
            command = re.sub(pattern, other, command)
        return command


QUICK, SLOW = Run(), Run(slow=True)

RELEASE = "`make release` runs it: tests/docs/first_commands.py"
RAY = "`make test-cluster` runs it: tests/cluster"
KUBERNETES = "needs Kubernetes; its names, paths and images are compared by tests/k8s"

SMALL = (
    (r"--nproc-per-node \d", "--nproc-per-node 2"),
    (r"--ring \d", "--ring 2"),
    (r"--steps \d+", "--steps 2"),
    (r"--save-every \d+", "--save-every 1"),
)
"""Two processes and two steps."""
MY = (
    *SMALL,
    (r" \.\.\. ", " --data my/dataset --model my/model --steps 1 "),
    ("packed/llava", "my/dataset"),
    ("--model model ", "--model my/model "),
)
EXPORT = ((r"demo/model --out run/model.*", "my/model --out run/exported"),)

TABLE: dict[str, list[tuple[str, Run | str]]] = {
    "README.md": [("pip install", RELEASE), ("hf download", RELEASE), ("make demo", "docs/start.md and CI run it")],
    "docs/advice.md": [
        ("preshard advise demo", SLOW),
        ("preshard advise DATASET", Run(slow=True, instead=(("DATASET", "demo/dataset"), ("path/to", "demo")))),
        ("preshard suggest", SLOW),
    ],
    "docs/cluster.md": [
        *((begins, RAY) for begins in ("ray start", "ray job submit", "ray job submit", "preshard pack")),
        *((begins, RAY) for begins in ("ray get-auth-token", "RAY_AUTH_MODE=token")),
        ("torchrun", "needs two machines; tests/cluster/test_torchrun.py has two agents"),
        *((begins, KUBERNETES) for begins in ("docker build", "kind create", "preshard demo-source")),
        *(("kubectl", KUBERNETES) for _ in range(7)),
    ],
    "docs/families.md": [("preshard demo-model", QUICK)],
    "docs/integrations.md": [("swift sft", "`make test-matrix` runs it: tests/trainer/integrations/test_commands.py")],
    "docs/layouts.md": [
        ("preshard demo-source", Run(slow=True, instead=(("demo/mixed 10", "demo/mixed 10 --out drawn"),)))
    ],
    "docs/packing.md": [
        ("preshard pack data/llava", QUICK),
        ("preshard show data", QUICK),
        *(("preshard pack", QUICK) for _ in range(3)),
        ("PYTHONPATH", Run(instead=(("SOURCE", "asked.jsonl"), ("DATASET", "formed")))),
        ("preshard pack my/source", QUICK),
        ("export AWS", "needs a bucket; tests/s3 packs from one and to one"),
        ("preshard pack SOURCE", "needs the Hub; tests/hub has a server with its protocol"),
        ("preshard pack OLD", Run(instead=(("OLD_A", "plain"), ("OLD_B", "o"), ("OLD", "all"), ("131072", "73728")))),
    ],
    "docs/planning.md": [("preshard plan", SLOW)],
    "docs/recipes.md": [
        *(("preshard pack", QUICK) for _ in range(7)),
        ("torchrun --nproc-per-node 4 loop.py", Run(slow=True, instead=MY)),
        ("head", QUICK),
        ("ray job submit", RAY),
        ("torchrun", Run(slow=True, instead=MY)),
        ("pip install wandb", "`make test-matrix` runs it with wandb: tests/trainer/test_metrics.py"),
    ],
    "docs/service.md": [*(("preshard serve", SLOW), ("curl", SLOW), ("curl", SLOW), ("curl", SLOW))],
    "docs/start.md": [
        ("make demo", SLOW),
        ("make train", SLOW),
        ("python", SLOW),
        ("preshard pack", Run(slow=True, instead=SMALL)),
    ],
    "docs/training.md": [
        ("preshard pack", Run(slow=True, instead=SMALL)),
        ("python", Run(slow=True, instead=MY)),
        ("torchrun", Run(slow=True, instead=SMALL)),
        ("python -m preshard.train --dry-run", SLOW),
        ("python -m preshard.export", Run(slow=True, instead=EXPORT)),
    ],
}


def table() -> list[tuple[Block, Run | str]]:
    """Every shell block of the pages, with how it is run or why it is not."""
    found: list[tuple[Block, Run | str]] = []
    for page in PAGES:
        listed = TABLE.get(page, [])
        shown = blocks(page)
        assert [block.commands[0].text[: len(begins)] for block, (begins, _) in zip(shown, listed, strict=False)] == [
            begins for begins, _ in listed
        ], page
        assert len(shown) == len(listed), (page, [block.commands[0].text for block in shown[len(listed) :]])
        found += [(block, how) for block, (_, how) in zip(shown, listed, strict=True)]
    return found


def printed(command: str, folder: Path) -> tuple[int, str]:
    """Exit status of a command and what a terminal shows of it; ``preshard`` runs in this process."""
    words = shlex.split(command)
    variables = [words.pop(0) for _ in range(len(words)) if re.match(r"[A-Z_]+=", words[0])]
    if words[0] != "preshard":
        done = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr
    with pytest.MonkeyPatch.context() as patch, io.StringIO() as shown:
        patch.chdir(folder)
        patch.setenv("COLUMNS", "140")
        for name, value in (variable.split("=", 1) for variable in variables):
            patch.setenv(name, value)
            if name == "PYTHONPATH":
                patch.syspath_prepend(str(folder / value))
        with redirect_stdout(shown), redirect_stderr(shown), pytest.raises(SystemExit) as ended:
            main(words[1:])
        return int(ended.value.code or 0), shown.getvalue()


def check(command: Command, how: Run, number: int, run: Callable[[str], tuple[int, str]]) -> None:
    """Runs a command, and compares what it prints with what the page shows of it."""
    text = how.here(command.text).replace("NEW", f"new-{number}")
    status, shown = run(text)
    assert (status != 0) == command.fails, f"$ {text}\n{status}: {shown}"
    differs = first_difference(command.shown, shown)
    assert differs is None, f"the page shows {differs!r}, and\n$ {text}\nprints\n{shown}"


def pages_with(*, slow: bool) -> list[str]:
    runs = {page: [how for _, how in listed if isinstance(how, Run)] for page, listed in TABLE.items()}
    return [page for page, hows in runs.items() if any(how.slow == slow for how in hows)]


def test_most_blocks_are_run_and_the_others_have_a_reason() -> None:
    """Fails when a block is added to a page and nothing runs it, or the table names one that is gone."""
    hows = [how for _, how in table()]
    elsewhere = [how for how in hows if isinstance(how, str) and not how.startswith("needs ")]
    assert sum(isinstance(how, Run) for how in hows) + len(elsewhere) >= 40
    assert len(elsewhere) < sum(isinstance(how, Run) for how in hows) / 2


@pytest.mark.parametrize("page", pages_with(slow=False))
def test_quick_blocks_of_a_page(page: str, tmp_path: Path) -> None:
    """Fails when a page shows a command that fails, or that prints something else."""
    if page in GIVEN:
        GIVEN[page](tmp_path)
    for block, how in table():
        if block.page == page and isinstance(how, Run) and not how.slow:
            for number, command in enumerate(block.commands):
                check(command, how, number, lambda text: printed(text, tmp_path))


@pytest.mark.parametrize(
    ("shown", "output", "differs"),
    [
        (["a 1.2 s", "b"], "a 3.4 s\nb\n", None),
        (["a"], "[ 0.1 s] a\n[ 0.2 s] more\n", None),
        (["a", "c"], "a\nb\nc\n", "c"),
        (["a", "...", "c"], "a\nb\nc\n", None),
        (["a 1"], "a 2\n", "a 1"),
        (["a ... z"], "a and z\n", None),
        (["a"], "a\nb\n", "(and, not shown) b"),
        ([], "anything\n", None),
    ],
)
def test_what_is_printed_is_compared(shown: list[str], output: str, differs: str | None) -> None:
    """Fails when the comparison no longer notices a line, or takes a time for one."""
    assert first_difference(shown, output) == differs


MADE = ("demo", "installed")
"""Files of an environment by which `make` knows that nothing is to be installed."""


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy of the files that git tracks, with this environment, where `make` installs nothing."""
    folder = tmp_path_factory.mktemp("checkout")
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, tracked.decode().split("\0")):
        if (ROOT / name).exists():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    environment = folder / ".venv"
    environment.mkdir()
    for entry in Path(sys.executable).parents[1].iterdir():
        if entry.name not in MADE:
            (environment / entry.name).symlink_to(entry)
    for name in MADE:
        (environment / name).touch()
    return folder


@pytest.mark.slow  # trains, packs the demo
@pytest.mark.parametrize("page", pages_with(slow=True))
def test_slow_blocks_of_a_page(page: str, checkout: Path, tmp_path: Path) -> None:
    """Fails when a page shows a command that fails, or that prints something else."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "140",
        "OMP_NUM_THREADS": "1",
    }
    make = [] if page == "docs/start.md" else ["make", "--silent", "demo"]
    if make and page in OF_THE_DEMO:
        subprocess.run(make, cwd=checkout, env=environment, check=True)
    folder = checkout if page in OF_THE_DEMO else tmp_path
    if page in GIVEN:
        GIVEN[page](folder)
    if page in SLOW_GIVEN:
        SLOW_GIVEN[page](folder)
    port, running = str(free_ports(1)[0]), ExitStack()

    def run(text: str) -> tuple[int, str]:
        text = text.replace("8000", port)
        if text.startswith("preshard serve"):
            said = running.enter_context(served(f"{text} --port {port}", folder, environment))
            return 0, said.replace(port, "8000")
        done = subprocess.run(
            ["bash", "-c", f'B="http://127.0.0.1:{port}/v1/datasets/dataset"; {text}'],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    with running:
        for block, how in table():
            if block.page == page and isinstance(how, Run):
                for number, command in enumerate(block.commands):
                    check(command, how, number, run)


@contextmanager
def served(command: str, folder: Path, environment: dict[str, str]) -> Iterator[str]:
    """A service that ends with the page; gives what it prints first."""
    service = subprocess.Popen(
        shlex.split(command),
        cwd=folder,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert service.stderr is not None
        yield service.stderr.readline()
    finally:
        service.terminate()
        service.wait()
