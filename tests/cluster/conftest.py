"""Ray nodes of the tests' own, and what a whole pack of the tiny source is to be."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from page import PackOn, command
from ray_nodes import QUICK, Machine, Node

from preshard.packer_service.config import load_config
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor

# At import, since the Ray that all tests share has the environment of its start.
for _name, _value in QUICK.items():
    os.environ.setdefault(_name, _value)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a dataset but run.json, which holds what is not deterministic."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "run.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture(scope="session")
def same_bytes(tiny_dataset: Path) -> Callable[[Path], bool]:
    """Whether a dataset is, byte by byte, what one process packs from the tiny source."""
    expected = contents(tiny_dataset)
    return lambda dataset: contents(dataset) == expected


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine.make(tmp_path / "machine")


def as_options(settings: list[str]) -> list[str]:
    return [part for setting in settings for part in ("--set", setting)]


@pytest.fixture(scope="session")
def options(tiny_settings: list[str]) -> list[str]:
    """Options that make a pack of the tiny source tiny, of which a fifth is broken."""
    return [*as_options(tiny_settings), "--max-rejects", "0.3"]


@pytest.fixture(scope="session")
def short_settings(tiny_settings: list[str]) -> list[str]:
    """Settings that make of the tiny source many shards of one short pack each."""
    short = ["seq_len=256", "packs_per_shard=1", "ring_degrees=[1,2]", "cp_sizes=[1,2]", "order.window=2"]
    return [*tiny_settings, *short]


@pytest.fixture(scope="session")
def short_options(short_settings: list[str]) -> list[str]:
    """The same, with room for those of its rows that are too long for short packs."""
    return [*as_options(short_settings), "--max-rejects", "0.4"]


@pytest.fixture(scope="session")
def pack_on(tiny_source: Path, short_options: list[str]) -> PackOn:
    def given(machine: Machine, head: Node, out: Path) -> list[str]:
        places = {"SOURCE": str(tiny_source), "DATASET": str(out), "HEAD:6379": head.address}
        found = command("preshard pack", **places)
        return [str(Path(machine.python).with_name(found[0])), *found[1:], *short_options]

    return given


@pytest.fixture(scope="session")
def short_packs(
    tmp_path_factory: pytest.TempPathFactory, tiny_source: Path, short_settings: list[str], progress: Any
) -> Path:
    """The tiny source in short packs, written by one process without a stop. Read only."""
    out = tmp_path_factory.mktemp("short") / "dataset"
    pack([str(tiny_source)], str(out), load_config(None, short_settings), PlainExecutor(), progress)
    return out


@pytest.fixture(scope="session")
def same_short_bytes(short_packs: Path) -> Callable[[Path], bool]:
    """Whether a dataset is these packs, byte by byte."""
    expected = contents(short_packs)
    return lambda dataset: contents(dataset) == expected
