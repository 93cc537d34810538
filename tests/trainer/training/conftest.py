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


@pytest.fixture(scope="session")
def lessons(made_once: Any, demo: Any) -> Path:
    """Videos, photographs, annotations and text of the demo in packs of 512 tokens, beside their model. Read only."""
    return made_once("lessons", lambda folder: make_lessons(demo[0], folder)) / "dataset"


@pytest.fixture(scope="session")
def texts(made_once: Any) -> Path:
    """Texts alone in packs of 512 tokens, beside a model that is quicker to train. Read only."""
    return made_once("texts", make_texts) / "dataset"


@pytest.fixture(scope="session")
def torchrun() -> Callable[..., Any]:
    """``torchrun(data, "--steps", 2, processes=2)``: the trainer on a dataset, in processes that torchrun starts."""

    def command(data: Path, *arguments: str | Path, processes: int) -> Any:
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        return subprocess.run(
            [*start, "-m", "trainer.train", *given(data), *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return command
