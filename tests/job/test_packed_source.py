"""A packed dataset as a source: what comes of it is what its own source would have given, byte for byte."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from once import MadeOnce
from repacked import KINDS, Silent, make_source, packed, rejects, shards, without

from packer_service.cli import main
from packer_service.config import load_config
from packer_service.job.pack import pack
from packer_service.runtime.executors import PlainExecutor
from packer_service.verify import verify_dataset
from schemas.errors import ConfigError

OTHER = ["cp_sizes=[1,4]", "ring_degrees=[1,2]", "layouts=[contiguous,balanced_ring]", "order.seed=7", "max_images=40"]
"""A job that differs from the first in everything that can change without the source."""


@pytest.fixture(scope="module")
def squares(made_once: MadeOnce) -> tuple[Path, list[str]]:
    """A folder with a ``source`` for the generic way, and the settings that pack it."""

    def make(folder: Path) -> None:
        (folder / "settings.json").write_text(json.dumps(make_source(folder, "square")))

    folder = made_once("repacked", make)
    return folder, json.loads((folder / "settings.json").read_text())


@pytest.fixture(scope="module")
def old(squares: tuple[Path, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of the generic way. Read only: copy it before changing anything."""
    folder, common = squares
    return packed(folder / "source", tmp_path_factory.mktemp("old") / "old", [*common, "seq_len=512"])


def check_equal(source: Path, folder: Path, first: list[str], second: list[str]) -> tuple[Path, Path]:
    """Packs a source, then what came of it, and compares with packing at once all that could come through."""
    old = packed(source, folder / "old", first)
    through = packed(old, folder / "through", second)
    refused = {name for name, why in rejects(through).items() if why.startswith("it was split")}
    chosen = without(source, folder / "chosen", {*rejects(old), *refused})
    at_once = packed(chosen, folder / "at-once", [*first, *second])
    assert shards(through) == shards(at_once)
    assert rejects(through).keys() - refused == rejects(at_once).keys()
    return old, through


@pytest.mark.parametrize("family", KINDS)
def test_another_length_gives_the_bytes_that_the_source_would_give(tmp_path: Path, family: str) -> None:
    """Fails when a token, label, position, group, unit or crop changes on its way through a pack or a join of pieces."""
    common = make_source(tmp_path, family)
    short = 64 if family in ("square", "qwen3") else 160
    first, second = [*common, f"seq_len={short}", "oversize=split"], ["seq_len=1024", *OTHER, "packs_per_shard=3"]
    old, through = check_equal(tmp_path / "source", tmp_path, first, second)
    several = {row["doc_id"] for row in documents(old) if row["piece"] > 0}
    joined = several & {row["doc_id"] for row in documents(through)}
    assert joined >= ({"long text"} if family == "qwen3" else {"long text", "annotated"})


def documents(dataset: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = pq.read_table(dataset / "documents.parquet").to_pylist()
    return rows
