"""Packs of the demo small enough to train on in tests, and the trainer's command as a user runs it."""

from __future__ import annotations

import inspect
import json
import os
import pydoc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from packer_service.config import load_config
from packer_service.job import PlainExecutor, pack

ROOT = Path(__file__).parents[3]
GRID = Path(__file__).with_name("grid.py")
SETTINGS = [
    "seq_len=512",
    "block_size=32",
    "vision.image_size=56",
    "vision.pool_size=2",
    "video.fps=1",
    "video.max_frames=3",
    "max_images=12",
    "annotation_weight=sqrt",
    "packs_per_shard=4",
    "order.window=4",
]
EACH = 9
"""Documents of each of the demo's four subsets."""

Command = Callable[..., "subprocess.CompletedProcess[str]"]


def _small_tokenizer(path: Path) -> Path:
    """A byte-level BPE of 512 tokens: with the vocabulary of a real one nearly all time would go to its logits."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=512, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(inspect.getsource(pydoc).splitlines(), trainer)
    tokenizer.save(str(path))
    return path


def _short_rows(source: Path) -> list[str]:
    """The first documents of each subset that are short, their media by absolute paths."""
    taken: dict[str, list[str]] = {}
    for line in (source / "documents.jsonl").read_text(encoding="utf-8").splitlines():
        if len(line) < 1000 and line.startswith('{"id": "') and not line.startswith('{"id": "bad'):
            moved = line.replace('"videos/', f'"{source}/videos/').replace('"photos/', f'"{source}/photos/')
            taken.setdefault(json.loads(line)["source"], []).append(moved)
    return [line for lines in taken.values() for line in lines[:EACH]]


@pytest.fixture(scope="session")
def lessons(tmp_path_factory: pytest.TempPathFactory, demo: Any, progress: Any) -> Path:
    """Videos, photographs, annotations and text of the demo, in packs of 512 tokens. Read only."""
    folder = tmp_path_factory.mktemp("lessons")
    (folder / "rows.jsonl").write_text("\n".join(_short_rows(demo[0])), encoding="utf-8")
    tokenizer = _small_tokenizer(folder / "tokenizer.json")
    config = load_config(None, [*SETTINGS, f"tokenizer={tokenizer}"])
    pack([str(folder / "rows.jsonl")], str(folder / "dataset"), config, PlainExecutor(), progress)
    return folder / "dataset"


def run_command(command: list[str], timeout: float = 120) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=timeout, check=False
    )


@pytest.fixture(scope="session")
def grid(lessons: Path) -> Command:
    """``grid("--cases", ...)``: the exactness grid over the lessons, in processes of its own."""
    return lambda *arguments: run_command([sys.executable, str(GRID), str(lessons), *arguments])


@pytest.fixture(scope="session")
def train(lessons: Path) -> Command:
    """``train("--steps", "2", processes=2)``: the trainer on the lessons, under torchrun with more than one process."""

    def command(*arguments: str | Path, processes: int = 1, data: Path = lessons) -> Any:
        alone = [sys.executable, "-m", "trainer.train"]
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        start = alone if processes == 1 else [*torchrun, "-m", "trainer.train"]
        return run_command([*start, "--data", str(data), *map(str, arguments)])

    return command
