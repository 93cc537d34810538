"""A run that was stopped continues as if it had not been, on any number of ranks."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch.distributed.checkpoint as dcp
from lessons import TEXT_MODEL, VOCABULARY, make_texts
from packed_ranks import train_job

from preshard.packer_service.demo.model import write_model_folder
from preshard.schemas.errors import ConfigError
from preshard.trainer.core.checkpoint import find_checkpoint, read_run_state
from preshard.trainer.core.config import make_config
from preshard.trainer.core.mesh import Mesh
from preshard.trainer.core.metrics import StepFigures
from preshard.trainer.core.setup import Job, prepare
from preshard.trainer.data.dataset import PackedDataset

STEPS, SAVED = 3, 1
PACKS_PER_STEP = 2
OPTIONS: dict[str, object] = {"steps": STEPS, "dtype": "float64", "lr": 0.003, "warmup": 2, "keep": 9}

Train = Callable[..., list[StepFigures]]


def with_model(options: dict[str, object]) -> dict[str, object]:
    """The options with the model beside the dataset, unless they name one."""
    return {"model": Path(str(options["data"])).with_name("model"), "from_scratch": True, **options}


@pytest.fixture(scope="module")
def train_on(gloo_pool: Any, texts: Path) -> Train:
    """``train_on(ulysses=, ring=, dp_shard=, dp_replicate=, **options)``: what rank 0 reports."""

    def train(
        ulysses: int = 1, ring: int = 1, dp_shard: int = 1, dp_replicate: int = 1, **options: object
    ) -> list[StepFigures]:
        degrees = {"ulysses": ulysses, "ring": ring, "dp_shard": dp_shard}
        given = {"data": str(texts), **OPTIONS, **degrees, **options}
        given["accumulate"] = PACKS_PER_STEP // (dp_shard * dp_replicate)
        found: list[StepFigures] = gloo_pool.run(train_job, with_model(given), **degrees, dp_replicate=dp_replicate)[0]
        return found

    return train


@pytest.fixture(scope="module")
def whole(train_on: Train, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[StepFigures], Path]:
    """An uninterrupted run on two ranks, and its checkpoints."""
    folder = tmp_path_factory.mktemp("whole") / "checkpoints"
    return train_on(ring=2, layout="zigzag", checkpoint=str(folder), save_every=SAVED), folder


def _stopped(whole: tuple[list[StepFigures], Path], folder: Path) -> Path:
    """The checkpoints as they were after the step SAVED."""
    shutil.copytree(whole[1] / f"step-{SAVED:08d}", folder / f"step-{SAVED:08d}")
    return folder


@pytest.mark.parametrize(
    "ranks",
    [
        {"ring": 2, "layout": "zigzag"},
        {"attention": "ring"},
        pytest.param(
            {"ring": 2, "ulysses": 2, "attention": "hybrid", "layout": "balanced_ring"}, marks=pytest.mark.slow
        ),
        {"dp_shard": 2, "offload": "state"},
        pytest.param({"dp_replicate": 2, "ring": 2, "attention": "ring"}, marks=pytest.mark.slow),
    ],
    ids=lambda ranks: "-".join(f"{name}={value}" for name, value in ranks.items()),
)
def test_resumed_on_any_ranks_the_steps_are_those_of_the_whole_run(
    whole: tuple[list[StepFigures], Path], train_on: Train, tmp_path: Path, ranks: dict[str, Any]
) -> None:
    """Fails when parameters, moments, data position or learning rate are not restored on the same or another mesh."""
    rest = train_on(**ranks, checkpoint=str(_stopped(whole, tmp_path)), resume=True)
    expected = whole[0][SAVED:]
    assert [figures.step for figures in rest] == list(range(SAVED + 1, STEPS + 1))
    assert [figures.packs for figures in rest] == [figures.packs for figures in expected]
    for ours, theirs in zip(rest, expected, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-9)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-9)
        assert (ours.tokens, ours.lr, ours.epoch) == (theirs.tokens, theirs.lr, theirs.epoch)


def test_state_on_the_host_trains_alike(whole: tuple[list[StepFigures], Path], train_on: Train, tmp_path: Path) -> None:
    """Fails when keeping parameters, gradients and AdamW's means on the host changes a step, with gradients of one pack
    or added up, or what a checkpoint holds.
    """
    ranks = {"ring": 2, "layout": "zigzag", "checkpoint": str(tmp_path), "save_every": SAVED}
    found = train_on(**ranks, offload="state")
    for ours, theirs in zip(found, whole[0], strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-12)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=1e-12)
    shutil.rmtree(tmp_path / f"step-{STEPS:08d}")
    rest = train_on(**{**ranks, "ring": 1, "dp_shard": 2}, resume=True)
    assert [figures.loss for figures in rest] == pytest.approx([whole[0][-1].loss], rel=1e-9)


def test_the_run_passed_the_end_of_an_epoch_and_took_each_pack_once(
    whole: tuple[list[StepFigures], Path], texts: Path
) -> None:
    """Fails when a pack is taken twice or never, or when no epoch ends in the resumed part, inside of a step."""
    n_packs = PackedDataset(texts).n_packs
    taken = [pack for figures in whole[0] for pack in figures.packs]
    assert SAVED * PACKS_PER_STEP < n_packs < STEPS * PACKS_PER_STEP
    assert n_packs % PACKS_PER_STEP
    assert sorted(taken[:n_packs]) == list(range(n_packs))
    assert [figures.epoch for figures in whole[0]] == [0, 0, 1]


SECOND_SAVE = "step-00000002"


def crash_while_saving(mesh: Mesh, options: dict[str, object], where: str) -> str:
    """Runs on each rank of the pool: the second save ends where ``kill -9`` might end it."""
    save, rename = dcp.save, Path.rename

    def die_before_the_parts(state: Any, *, storage_writer: Any) -> Any:
        if storage_writer.path.name.endswith(SECOND_SAVE):
            raise KeyboardInterrupt
        return save(state, storage_writer=storage_writer)

    def die_before_the_rename(path: Path, target: Path) -> Path:
        if Path(target).name == SECOND_SAVE:
            raise KeyboardInterrupt
        return rename(path, target)

    patches = {
        "before the parts": patch.object(dcp, "save", die_before_the_parts),
        "before the rename": patch.object(Path, "rename", die_before_the_rename),
    }
    with patches[where]:
        try:
            train_job(mesh, options)
        except KeyboardInterrupt:
            return "died"
    return "lived"


@pytest.mark.parametrize("where", ["before the parts", "before the rename"])
def test_a_save_that_was_cut_short_is_not_found(
    gloo_pool: Any, texts: Path, tmp_path: Path, train_on: Train, where: str
) -> None:
    """Fails when half a checkpoint is taken for a whole one, or its remains stop the next save."""
    options = {**OPTIONS, "data": str(texts), "accumulate": 1, "steps": 4, "checkpoint": str(tmp_path)}
    said = gloo_pool.run(crash_while_saving, with_model({**options, "save_every": 1}), where)
    assert said == ["died"]
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"step-00000001", f"unfinished-{SECOND_SAVE}"}
    found = find_checkpoint(tmp_path)
    assert found is not None
    assert read_run_state(found).step == 1
    gloo_pool.run(train_job, with_model({**options, "resume": True}))
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000001", "step-00000004"}


def test_only_the_newest_checkpoints_are_kept(gloo_pool: Any, texts: Path, tmp_path: Path) -> None:
    """Fails when a long run fills the disk, or when the newest checkpoint is removed."""
    options = {**OPTIONS, "data": str(texts), "steps": 4, "checkpoint": str(tmp_path), "save_every": 1, "keep": 2}
    gloo_pool.run(train_job, with_model(options))
    assert {path.name for path in tmp_path.iterdir()} == {"step-00000003", "step-00000004"}


def _prepare(**options: object) -> Job:
    return prepare(make_config(with_model(options)), rank=0, world_size=1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"seed": 1}, "seed 0, not 1"),
        ({"model": "shallower"}, "of model qwen3"),
        ({"data": "other"}, "of dataset"),
        ({"steps": STEPS - 1}, f"of a later step: give --steps {STEPS} or more"),
    ],
    ids=lambda value: str(value) if isinstance(value, str) else next(iter(value)),
)
def test_a_checkpoint_of_another_run_is_refused(
    whole: tuple[list[StepFigures], Path],
    texts: Path,
    tmp_path: Path,
    change: dict[str, object],
    named: str,
) -> None:
    """Fails when a run continues with other packs, parameters or data than it started with, or exports a model of more
    steps than it was asked for.
    """
    changed = dict(change)
    if "model" in change:
        config = {**TEXT_MODEL, "num_hidden_layers": 1}
        write_model_folder(tmp_path / "shallow", "qwen3", vocabulary=VOCABULARY, files={"config.json": config})
        changed["model"] = str(tmp_path / "shallow")
    if "data" in change:
        changed["data"] = str(make_texts(tmp_path, documents=4))
    options = {"data": str(texts), **OPTIONS, "checkpoint": str(whole[1]), "resume": True}
    assert _prepare(**options).start.step == STEPS
    with pytest.raises(ConfigError, match=named):
        _prepare(**{**options, **changed})


def test_a_folder_with_checkpoints_is_not_written_into_by_a_new_run(
    whole: tuple[list[StepFigures], Path], texts: Path
) -> None:
    """Fails when forgetting --resume mixes the checkpoints of two runs."""
    with pytest.raises(ConfigError, match=f"holds step-{STEPS:08d}; use --resume"):
        _prepare(data=str(texts), **OPTIONS, checkpoint=str(whole[1]))


def test_resume_starts_at_step_1_where_there_is_no_checkpoint_yet(texts: Path, tmp_path: Path) -> None:
    """Fails when a job that is always started with --resume cannot be started a first time."""
    job = _prepare(data=str(texts), **OPTIONS, checkpoint=str(tmp_path / "none"), resume=True)
    assert (job.start.step, job.checkpoint) == (0, None)


def test_bfloat16_and_recomputation_train_nearly_as_float32(train_on: Train) -> None:
    """Fails when dtypes are mixed where torch cannot mix them, or a recomputed block computes something else."""
    low = train_on(ring=2, attention="ring", steps=2, dtype="bfloat16", recompute="full", lr=1e-6)
    full = train_on(ring=2, attention="ring", steps=2, dtype="float32", lr=1e-6)
    for ours, theirs in zip(low, full, strict=True):
        assert ours.loss == pytest.approx(theirs.loss, rel=0.01)
        assert ours.grad_norm == pytest.approx(theirs.grad_norm, rel=0.05)
        assert ours.loss != theirs.loss
