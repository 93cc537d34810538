"""A dataset for a model with sliding windows: packed while such models are let through, verified, and corrupted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from changed_places import add, drop
from pyarrow.parquet import read_table

from preshard.packer_service.config import load_config
from preshard.packer_service.demo.model import write_model_folder
from preshard.packer_service.ingest import model
from preshard.packer_service.job.pack import pack
from preshard.packer_service.job.preview.source import plan_sources
from preshard.packer_service.job.resolve import resolve
from preshard.packer_service.layout.area import attention_area
from preshard.packer_service.layout.mask import MaskIndex
from preshard.packer_service.plan.cost import CostModel, pack_cost
from preshard.packer_service.report.dataset import report_dataset
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.packer_service.runtime.progress import NoProgress
from preshard.packer_service.verify import Verdict
from preshard.schemas.config import PackConfig
from preshard.schemas.mask import dense_mask

WINDOW, FULL_LAYERS, WINDOW_LAYERS = 100, 1, 3
breaks = pytest.mark.breaks


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> PackConfig:
    folder = tmp_path_factory.mktemp("model") / "model"
    kinds = ["full_attention"] * FULL_LAYERS + ["sliding_attention"] * WINDOW_LAYERS
    text = {"use_sliding_window": True, "sliding_window": WINDOW, "layer_types": kinds, "num_hidden_layers": 4}
    write_model_folder(folder, "qwen2_5_vl", vocabulary=400, files={"config.json": {"text_config": text}})
    settings = [f"model={folder}", "seq_len=1024", "block_size=32", "packs_per_shard=2"]
    return load_config(None, [*settings, "ring_degrees=[1,2]", "cp_sizes=[1,2]", "order.window=4"])


@pytest.fixture(scope="module")
def windowed(tiny_source: Path, config: PackConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only. Fails to pack once the refusal has another name: then what it lets through is not tested here."""
    out = tmp_path_factory.mktemp("windowed") / "dataset"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "check_window", lambda *_: None)
        pack([str(tiny_source)], str(out), config, PlainExecutor(), NoProgress())
    return out


@pytest.fixture
def windowed_copy(windowed: Path, editable_of: Callable[[Path], Any], tmp_path: Path) -> Any:
    return editable_of(shutil.copytree(windowed, tmp_path / "dataset"))


def test_a_dataset_of_two_masks_is_sound(windowed: Path, verify: Callable[[Path], Verdict]) -> None:
    """Fails when packing and verifying, or either and the independent check, see different windows."""
    verdict = verify(windowed)
    assert not verdict.broken, verdict.as_lines()
    assert verdict.checked["independent"] > 0
    manifest = json.loads((windowed / "manifest.json").read_bytes())
    assert manifest["model"]["masks"] == {
        "full_layers": FULL_LAYERS, "window_layers": WINDOW_LAYERS, "window": WINDOW, "groups": "all"
    }  # fmt: skip


def test_measures_are_those_of_both_masks(windowed_copy: Any) -> None:
    """Fails when a window's loads are those of the full mask, or the layers' sums are not weighed."""
    shorter = 0
    for row in windowed_copy.tables["measures.parquet"]:
        if row["scheme"] is None:
            assert row["window_attention_tiles"] is row["layers_tiles"] is row["window_tiles"] is None
            continue
        mask = windowed_copy.samples()[row["pack_id"]].arrays.mask
        assert row["window_sum_attention"] == dense_mask(mask, window=WINDOW).sum()
        assert row["sum_attention"] == attention_area(MaskIndex.of(mask))
        shorter += row["window_sum_attention"] < row["sum_attention"]
        for what in ("gather_path", "ring_path"):
            asked = FULL_LAYERS * row[what] + WINDOW_LAYERS * row[f"window_{what}"]
            assert row[f"layers_{what}"] == asked >= row["layers_tiles"] / row["degree"]
    assert shorter


def test_a_pack_costs_what_was_planned(
    windowed: Path, tiny_source: Path, config: PackConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when the plan weighs packs by one mask and what is written by two, or both by the full mask alone."""
    monkeypatch.setattr(model, "check_window", lambda *_: None)
    planned = plan_sources(resolve([str(tiny_source)], config), PlainExecutor(), NoProgress())
    found = report_dataset(str(windowed))
    assert planned.cost_percentiles == found.cost_percentiles
    rows = read_table(windowed / "packs.parquet").to_pylist()
    whole = [pack_cost(CostModel.of(config), seq_len=1024, tiles=np.array([float(row["attention_tiles"])]),
                       loads=np.array([row["load"]])) for row in rows]  # fmt: skip
    assert all(row["cost"] < cost for row, cost in zip(rows, whole, strict=True))


def test_without_windows_nothing_of_them_is_stored(sound: Path, editable_of: Callable[[Path], Any]) -> None:
    """Fails when a dataset of a model without windows gets other bytes in its shards, or another id."""
    data = editable_of(sound)
    assert not any("window" in name for sample in data.samples() for name in sample.layouts)
    assert all(row["layers_tiles"] is row["window_tiles"] is None for row in data.tables["measures.parquet"])
    assert b'"masks"' not in (sound / "manifest.json").read_bytes()


@breaks("P11")
def window_needs_of_another_width(data: Any) -> None:
    layouts = data.samples()[0].layouts
    layouts["zigzag.ring2.window_needs"] = layouts["zigzag.ring2.window_needs"][:, :-1]


@breaks("P11")
def window_needs_without_a_layout(data: Any) -> None:
    layouts = data.samples()[0].layouts
    layouts["zigzag.ring4.window_needs"] = layouts["zigzag.ring2.window_needs"]


@breaks("P13")
def window_block_that_is_not_marked(data: Any) -> None:
    needs = data.samples()[0].layouts["balanced_gather.ring2.window_needs"]
    needs[tuple(np.argwhere(needs)[0])] = False


@breaks("P13")
def needs_of_the_full_mask_for_a_window(data: Any) -> None:
    sample = data.sample_where(
        lambda s: (s.layouts["contiguous.ring2.needs"] != s.layouts["contiguous.ring2.window_needs"]).any()
    )
    sample.layouts["contiguous.ring2.window_needs"] = sample.layouts["contiguous.ring2.needs"]


@breaks("P17")
def window_tiles_of_another_rank(data: Any) -> None:
    row = next(row for row in data.tables["measures.parquet"] if row["degree"] == 2 and row["scheme"])
    row["window_keys_fetched"] = [row["window_keys_fetched"][0] + 1, *row["window_keys_fetched"][1:]]


@breaks("D2")
def bidirectional_that_is_null(data: Any) -> None:
    data.write_manifest({**data.manifest, "model": {**data.manifest["model"], "bidirectional": None}})
    data.save = lambda: None


@breaks("D2")
def a_model_without_a_layer_with_a_window(data: Any) -> None:
    manifest = json.loads((data.path / "manifest.json").read_bytes())
    manifest["model"]["masks"]["window_layers"] = 0
    data.write_manifest(manifest)
    data.save = lambda: None


def test_corrupt_dataset(
    rule: str,
    also: tuple[str, ...],
    corrupt: Callable[[Any], None],
    windowed_copy: Any,
    assert_breaks: Callable[..., Any],
) -> None:
    """Fails when a dataset for a model with windows that breaks a rule passes for sound."""
    corrupt(windowed_copy)
    windowed_copy.save()
    assert_breaks(windowed_copy, rule, *also)


CASES = [
    ("P11", "layout without window needs", lambda data: drop(data.samples()[0].layouts, "zigzag.ring2.window_needs")),
    (
        ("P11", "P17", "D3", "S6", "D14"),
        "masks that the manifest does not name",
        lambda data: drop(data.manifest["model"], "masks"),
    ),
    (
        ("P13", "P17", "S6", "D14"),
        "window of another size",
        lambda data: add(data.manifest["model"]["masks"], "window", 60),
    ),
    (
        ("P17", "S6", "D14"),
        "layers of another weight",
        lambda data: add(data.manifest["model"]["masks"], "full_layers", 1),
    ),
]
