"""A bug in a function that packing and verifying share is found, and only the independent way finds it."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from preshard.packer_service.config import load_config
from preshard.packer_service.job.pack import pack
from preshard.packer_service.layout.area import attention_area
from preshard.packer_service.layout.needs import key_blocks_needed, keys_fetched
from preshard.packer_service.layout.tiles import tiles_by_rank
from preshard.packer_service.plan.cost import document_tiles
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.verify import dataset as verifying
from preshard.packer_service.verify import verify_dataset
from preshard.packer_service.verify.verdict import Verdict
from preshard.schemas.boundaries import image_edges
from preshard.schemas.schemes import contiguous_runs, define_runs

SETTINGS = [
    "seq_len=512", "block_size=64", "cp_sizes=[2]", "ring_degrees=[2]", "vision.image_size=56", "packs_per_shard=2"
]  # fmt: skip


def plant(monkeypatch: pytest.MonkeyPatch, original: Callable[..., Any], broken: Callable[..., Any]) -> None:
    """Replaces a public function wherever the packer has it."""
    name = original.__name__
    for module in [each for key, each in sys.modules.items() if key.startswith("preshard.packer_service")]:
        if getattr(module, name, None) is original:
            monkeypatch.setattr(module, name, broken)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    Image.new("RGB", (60, 60), "red").save(folder / "red.png")
    red = {"type": "image", "image": "red.png"}
    rows: list[dict[str, Any]] = [{"id": f"text-{i}", "text": "word " * (40 + 70 * i)} for i in range(5)]
    for number, images in enumerate([1, 4, 1, 1]):
        turns = [{"role": "user", "content": [red] * images}, {"role": "assistant", "content": "x"}]
        rows.append({"id": f"images-{number}", "messages": turns})
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.fixture
def packed_and_verified(source: Path, tmp_path: Path, progress: Any) -> Callable[[], Verdict]:
    """Packs the source and verifies it, both with whatever is planted."""

    def run() -> Verdict:
        out = tmp_path / "dataset"
        if not out.exists():
            pack([str(source)], str(out), load_config(None, SETTINGS), PlainExecutor(), progress)
        return verify_dataset(str(out), processes=1, progress=progress)

    return run


def one_tile_less(*args: Any, **kwargs: Any) -> np.ndarray:
    tiles = tiles_by_rank(*args, **kwargs)
    tiles[0, 0] -= 1
    return tiles


def last_block_never_needed(*args: Any) -> np.ndarray:
    needs = key_blocks_needed(*args)
    needs[:, -1] = False
    return needs


@pytest.mark.parametrize(
    ("shared", "broken", "rules"),
    [
        (tiles_by_rank, one_tile_less, {"S6", "P17"}),
        (attention_area, lambda mask: attention_area(mask) + 1, {"S6"}),
        (keys_fetched, lambda *args: keys_fetched(*args) + 1, {"P17"}),
        (key_blocks_needed, last_block_never_needed, {"P13"}),
    ],
    ids=["tiles", "area", "keys", "needs"],
)
def test_a_bug_that_writer_and_verifier_share_is_found(
    shared: Callable[..., Any],
    broken: Callable[..., Any],
    rules: set[str],
    packed_and_verified: Callable[[], Verdict],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails when verify only repeats what the writer computed. Without the independent way it does: all is sound."""
    plant(monkeypatch, shared, broken)
    with monkeypatch.context() as patch:
        patch.setattr(verifying, "MOST_PACKS", 0)
        echo = packed_and_verified()
        assert echo.sound, echo.as_lines()
        assert echo.checked["independent"] == 0
    verdict = packed_and_verified()
    assert {fault.rule for fault in verdict.broken} == rules, verdict.as_lines()
    assert verdict.checked["independent"] == verdict.checked["packs"] > 1


def one_unit_on_the_first_rank(loads: np.ndarray, ranks: int) -> np.ndarray:
    assert ranks == 2
    return np.array([0, min(1, len(loads)), len(loads)])


@pytest.mark.parametrize(
    ("shared", "broken", "rule"),
    [
        (define_runs, lambda _, edges, degree: contiguous_runs(int(edges[-1]), degree), "P18"),
        (image_edges, one_unit_on_the_first_rank, "P15"),
        (document_tiles, lambda lengths, areas: document_tiles(lengths, areas) + 1, "S6"),
    ],
    ids=["zigzag", "boundaries", "cost"],
)
def test_what_is_cheap_is_independent_in_every_pack(
    shared: Callable[..., Any],
    broken: Callable[..., Any],
    rule: str,
    packed_and_verified: Callable[[], Verdict],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails when a scheme, boundaries or a cost are compared with what the writer's own function says."""
    plant(monkeypatch, shared, broken)
    monkeypatch.setattr(verifying, "MOST_PACKS", 0)
    verdict = packed_and_verified()
    assert {fault.rule for fault in verdict.broken} == {rule}, verdict.as_lines()


def test_thorough_takes_every_pack(source: Path, tmp_path: Path, progress: Any) -> None:
    """Fails when --thorough still takes a sample, or a large dataset is checked whole without it."""
    config = load_config(None, [*SETTINGS, "seq_len=256"])
    texts = [json.dumps({"id": str(i), "text": "word " * 150}) for i in range(verifying.MOST_PACKS + 4)]
    (tmp_path / "rows.jsonl").write_text("\n".join(texts))
    pack([str(tmp_path / "rows.jsonl")], str(tmp_path / "out"), config, PlainExecutor(), progress)
    some = verify_dataset(str(tmp_path / "out"), processes=1, progress=progress)
    every = verify_dataset(str(tmp_path / "out"), thorough=True, processes=1, progress=progress)
    assert some.sound
    assert every.sound
    assert some.checked["independent"] == verifying.MOST_PACKS < some.checked["packs"]
    assert every.checked["independent"] == every.checked["packs"]
    assert f"{verifying.MOST_PACKS} of them independently" in some.as_lines()[-1]
