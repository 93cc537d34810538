"""Runs that train a part of a model or adapters: what they leave alone, checkpoints, and what they export."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from packed_ranks import train_job
from safetensors.torch import load_file, save_file

from preshard.schemas.errors import ConfigError
from preshard.trainer.core.config import make_config
from preshard.trainer.core.metrics import StepFigures
from preshard.trainer.core.setup import prepare
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.export import export_checkpoint
from preshard.trainer.extra.parts import Lora, Parts
from preshard.trainer.extra.work import StepWork
from preshard.trainer.models.interface import unwrap
from preshard.trainer.models.load import empty_model

pytestmark = pytest.mark.process  # packing decodes media in a process of its own

STEPS, SAVED = 3, 1
COMMON: dict[str, object] = {
    **{"steps": STEPS, "dtype": "float64", "lr": 0.01, "min_lr": 1.0, "warmup": 0, "keep": 9},
    **{"ring": 2, "layout": "zigzag", "weight_decay": 0.0},
}
FROZEN = {"freeze": ("vision",), "lr_part": ("language_model.norm=0.5", "lm_head=0.001")}
ADAPTERS = {"lora": 3, "lora_targets": ("q_proj", "up_proj", "visual.*.proj")}


Runs = dict[str, tuple[list[StepFigures], Path]]


@pytest.fixture(scope="module")
def given(folder_of: Callable[..., Path]) -> dict[str, object]:
    folder = folder_of("qwen3_vl")
    return {**COMMON, "data": str(folder / "dataset"), "model": str(folder / "model")}


@pytest.fixture(scope="module")
def runs(gloo_pool: Any, given: dict[str, object], tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Steps and the folder of an uninterrupted run of each kind, with ``checkpoints`` and the exported ``model``."""
    found = {}
    for name, options in {"frozen": FROZEN, "adapters": ADAPTERS}.items():
        folder = tmp_path_factory.mktemp(name)
        saved = {"checkpoint": str(folder / "checkpoints"), "save_every": SAVED, "export": str(folder / "model")}
        found[name] = gloo_pool.run(train_job, {**given, **options, **saved}, ring=2)[0], folder
    return found


def _stored(folder: Path) -> set[str]:
    """Names of what the last checkpoint holds."""
    reader = dcp.FileSystemReader(folder / "checkpoints" / f"step-{STEPS:08d}")
    return set(reader.read_metadata().state_dict_metadata)


def _moments(folder: Path) -> set[str]:
    start, end = "optimizer.state.", ".exp_avg"
    return {name[len(start) : -len(end)] for name in _stored(folder) if name.startswith(start) and name.endswith(end)}


def test_what_is_frozen_stays_bit_for_bit_and_has_no_moments(runs: Runs, given: dict[str, object]) -> None:
    """Fails when decay or a step reaches a frozen weight, when AdamW keeps moments of it, or when all stays alike."""
    _, folder = runs["frozen"]
    before = load_file(Path(str(given["model"])) / "model.safetensors")
    after = load_file(folder / "model" / "model.safetensors")
    moved = {name for name in after if not torch.equal(after[name], before[name].double())}
    vision = {name for name in after if ".visual." in name}
    assert len(vision) > 10
    assert moved == after.keys() - vision
    assert _moments(folder) == moved


def test_a_part_has_its_own_learning_rate(runs: Runs, given: dict[str, object]) -> None:
    """Fails when a part's rate is not taken, or that of another: AdamW's first step moves each number by the rate."""
    _, folder = runs["frozen"]
    before = load_file(Path(str(given["model"])) / "model.safetensors")
    export_checkpoint(folder / "checkpoints" / "step-00000001", Path(str(given["model"])), folder / "first")
    after = load_file(folder / "first" / "model.safetensors")
    for name, rate in {
        "model.language_model.norm.weight": 0.5,
        "lm_head.weight": 0.001,
        "model.language_model.layers.1.mlp.up_proj.weight": 0.01,
    }.items():
        assert float((after[name] - before[name]).abs().max()) == pytest.approx(rate, rel=1e-3), name


@pytest.mark.parametrize(
    ("name", "options"), [pytest.param("frozen", FROZEN, marks=pytest.mark.slow), ("adapters", ADAPTERS)]
)
def test_a_resumed_run_has_the_same_losses(
    gloo_pool: Any,
    runs: Runs,
    given: dict[str, object],
    tmp_path: Path,
    name: str,
    options: dict[str, object],
) -> None:
    """Fails when adapters, moments or rates are not restored, on another mesh too, or frozen weights are drawn."""
    figures, folder = runs[name]
    step = f"step-{SAVED:08d}"
    shutil.copytree(folder / "checkpoints" / step, tmp_path / step)
    again = {**given, **options, "checkpoint": str(tmp_path), "resume": True, "ring": 1, "dp_shard": 1, "ulysses": 2}
    rest = gloo_pool.run(train_job, again, ulysses=2)[0]
    assert [each.loss for each in rest] == pytest.approx([each.loss for each in figures[SAVED:]], rel=1e-9)
    assert [each.grad_norm for each in rest] == pytest.approx([each.grad_norm for each in figures[SAVED:]], rel=1e-9)
    assert len({each.loss for each in figures}) == STEPS


def test_adapters_do_not_go_on_with_another_base(runs: Runs, given: dict[str, object], tmp_path: Path) -> None:
    """Fails when adapters resume, or are merged, on weights that they were not trained on."""
    _, folder = runs["adapters"]
    other = tmp_path / "other"
    shutil.copytree(str(given["model"]), other)
    file = other / "model.safetensors"
    save_file({name: tensor + 1e-3 for name, tensor in load_file(file).items()}, file, metadata={"format": "pt"})
    options = {**given, **ADAPTERS, "model": str(other), "checkpoint": str(folder / "checkpoints"), "resume": True}
    with pytest.raises(ConfigError, match=r"is of model qwen3_vl (\w+) (\w+), not qwen3_vl \1 (?!\2)"):
        prepare(make_config(options), rank=0, world_size=2)
    with pytest.raises(ConfigError, match="give the folder that was trained"):
        export_checkpoint(folder / "checkpoints", other, tmp_path / "out")


def test_work_counts_what_trains(given: dict[str, object]) -> None:
    """Fails when the speed of a run with a frozen encoder or adapters is that of one that trains everything."""
    folder = str(given["model"])
    every, frozen, adapted = (
        StepWork.of(unwrap(parts.apply(empty_model(folder))))
        for parts in (Parts(), Parts(freeze=("vision", "lm_head")), Parts(lora=Lora(rank=1, alpha=1)))
    )
    head = empty_model(folder).get_output_embeddings().weight.numel()  # type: ignore[operator, union-attr]
    assert (every.vision, frozen.vision, adapted.vision) == (3, 1, 1)
    assert every.per_token - frozen.per_token == 2 * head
    assert 2 / 3 < adapted.per_token / every.per_token < 0.75
    assert every.per_tile == frozen.per_tile == adapted.per_tile


def test_adapters_alone_are_stored(runs: Runs) -> None:
    """Fails when every checkpoint of some adapters holds the whole model, or a moment of it."""
    _, folder = runs["adapters"]
    parameters = {name for name in _stored(folder) if name.startswith("model.")}
    assert all(".lora_A.default." in name or ".lora_B.default." in name for name in parameters)
    assert any(".visual." in name for name in parameters)
    assert {f"model.{name}" for name in _moments(folder)} == parameters


def test_merged_adapters_are_those_of_peft(
    gloo_pool: Any, runs: Runs, given: dict[str, object], tmp_path: Path
) -> None:
    """Fails when an export leaves adapters out, scales them otherwise than in training, or ``peft`` cannot load those
    that are kept.
    """
    from packed_models import alone, load_original

    peft = pytest.importorskip("peft")
    _, folder = runs["adapters"]
    options = {**given, **ADAPTERS, "steps": STEPS + 1, "resume": True}
    shutil.copytree(folder / "checkpoints" / f"step-{STEPS:08d}", tmp_path / "run" / f"step-{STEPS:08d}")
    kept = {"checkpoint": str(tmp_path / "run"), "export": str(tmp_path / "later"), "keep_adapters": True}
    [next_step] = gloo_pool.run(train_job, {**options, **kept}, ring=2)[0]
    batch = next(each for each in PackedDataset(str(given["data"])) if [each.pack_id] == next_step.packs)
    model, last = Path(str(given["model"])), folder / "checkpoints"
    export_checkpoint(last, model, tmp_path / "merged" / "model")
    export_checkpoint(last, model, tmp_path / "kept", keep_adapters=True)
    assert (tmp_path / "later" / "adapter_model.safetensors").is_file()
    with torch.no_grad():
        merged = alone(load_original(tmp_path / "merged", "qwen3_vl"), batch).item()
        at_the_end = alone(load_original(folder, "qwen3_vl"), batch).item()
        wrapped = peft.PeftModel.from_pretrained(load_original(model.parent, "qwen3_vl"), tmp_path / "kept")
        beside = alone(wrapped.get_base_model(), batch).item()
        untrained = alone(load_original(model.parent, "qwen3_vl"), batch).item()
    assert next_step.loss is not None
    expected = next_step.loss * next_step.loss_weight
    assert (merged, at_the_end, beside) == pytest.approx((expected,) * 3, rel=1e-9)
    assert abs(untrained - expected) > 1e-3 * expected


def test_another_choice_of_parts_is_refused(runs: Runs, given: dict[str, object], tmp_path: Path) -> None:
    """Fails when a run goes on with other parameters than its checkpoint has moments of; or when the same choice in
    other words is refused.
    """
    checkpoints = str(runs["frozen"][1] / "checkpoints")
    options = {**given, **FROZEN, "checkpoint": checkpoints, "resume": True}
    same = {**options, "freeze": ("model.visual",)}
    assert prepare(make_config(same), rank=0, world_size=2).start.step == STEPS
    for change, said in (
        ({"freeze": ("language",), "lr_part": ()}, "was trained with --freeze vision .* not with --freeze language: "),
        ({"freeze": (), "lr_part": ()}, "was trained with --freeze vision .* not with neither --freeze nor --lora"),
        ({"freeze": (), "lr_part": (), "lora": 2}, "not with --lora 2 --lora-alpha 4 --lora-targets language"),
    ):
        with pytest.raises(ConfigError, match=said) as raised:
            prepare(make_config({**options, **change}), rank=0, world_size=2)
        assert "\n" not in str(raised.value)
    with pytest.raises(ConfigError, match="has no adapters: leave it out"):
        export_checkpoint(Path(checkpoints), Path(str(given["model"])), tmp_path / "new", keep_adapters=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"lora_alpha": 3}, "--lora-alpha is given without --lora"),
        ({"keep_adapters": True}, "--keep-adapters is given without --lora"),
        ({"lora": 2, "freeze": "vision"}, "--freeze is given with --lora, which freezes the whole model"),
        ({"lora": 2, "from_scratch": True}, "adapters need a trained model"),
        ({"lr_part": "vision"}, "--lr-part is vision; write PART=LR"),
        ({"lr_part": "vision=-1"}, "--lr-part is vision=-1; write PART=LR"),
        ({"freeze": "visuals"}, "--freeze is visuals, which matches no parameter of qwen3_vl"),
    ],
)
def test_options_that_do_not_fit_each_other_are_refused(
    given: dict[str, object], options: dict[str, object], said: str
) -> None:
    """Fails when an option is ignored in silence, or a mistake ends in a traceback or after the model was loaded."""
    with pytest.raises(ConfigError, match=said):
        prepare(make_config({**given, **options}), rank=0, world_size=2)
