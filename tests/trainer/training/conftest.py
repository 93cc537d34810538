"""Datasets small enough to train on in tests (``lessons.py``), and the trainer's command as a user runs it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from lessons import given, make_lessons, make_texts

ROOT = Path(__file__).parents[3]
GRID = Path(__file__).with_name("grid.py")
Command = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def lessons(made_once: Any, demo: Any) -> Path:
    """Videos, photographs, annotations and text of the demo in packs of 512 tokens, beside their model. Read only."""
    return made_once("lessons", lambda folder: make_lessons(demo[0], folder)) / "dataset"


@pytest.fixture(scope="session")
def texts(made_once: Any) -> Path:
    """Texts alone in packs of 512 tokens, beside a model that is quicker to train. Read only."""
    return made_once("texts", make_texts) / "dataset"


def run_command(command: list[str], timeout: float = 120) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


@pytest.fixture(scope="session")
def grid(lessons: Path) -> Command:
    """``grid("--cases", ...)``: the script that runs the exactness grid, on the lessons, in its own processes."""
    return lambda *arguments: run_command([sys.executable, str(GRID), str(lessons), *arguments])


@pytest.fixture(scope="session")
def train(texts: Path) -> Command:
    """``train("--steps", "2", processes=2)``: the trainer on a dataset, under torchrun for several processes."""

    def command(*arguments: str | Path, processes: int = 1, data: Path = texts) -> Any:
        alone = [sys.executable, "-m", "trainer.train"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        start = alone if processes == 1 else [*torchrun, "-m", "trainer.train"]
        return run_command([*start, *given(data), *map(str, arguments)])

    return command
