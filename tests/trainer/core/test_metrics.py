"""The files of a run's figures, however often it was stopped."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from preshard.schemas.errors import ConfigError
from preshard.trainer.core.metrics import MetricsFile, StepFigures
from preshard.trainer.extra.trackers import TensorBoardFiles, WandbRun

STEP = StepFigures(
    step=1,
    loss=2.5,
    grad_norm=0.5,
    tokens=900,
    loss_weight=80.0,
    step_time=0.25,
    data_time=0.0,
    bytes_read=4096,
    cached_bytes=1024,
    retries=0,
    lr=1e-3,
    epoch=0,
    packs=[3, 1],
    tokens_per_second=3600.0,
    tflops=0.001,
    predicted_work=[0.1, 0.2],
    compute_times=[0.1, 0.2],
    predicted_imbalance=1.33,
    measured_imbalance=1.33,
    rewards={"chosen": 0.5},
)


def test_the_metrics_hold_each_step_once(tmp_path: Path) -> None:
    """Fails when steps repeated after a resume are listed twice, or half a line of a killed run breaks the file."""
    path = tmp_path / "new" / "metrics.jsonl"
    first = MetricsFile(path, after=0)
    for step in (1, 2, 3):
        first.write(replace(STEP, step=step))
    first.close()
    with path.open("a", encoding="utf-8") as file:
        file.write('{"step": 4, "lo')
    second = MetricsFile(path, after=2)
    second.write(replace(STEP, step=3))
    second.close()
    assert [json.loads(line)["step"] for line in path.read_text(encoding="utf-8").splitlines()] == [1, 2, 3]
    MetricsFile(path, after=0).close()
    assert path.read_text(encoding="utf-8") == ""


def test_a_resumed_run_goes_on_with_the_curves(tmp_path: Path) -> None:
    """Fails when a figure has no curve, a missing one has one, or steps that are done again are shown twice."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    first = TensorBoardFiles(tmp_path / "curves", after=0)
    for step in (1, 2, 3):
        first.write(replace(STEP, step=step, loss=10.0 + step, eval_loss=1.5 if step == 2 else None))
    first.close()
    resumed = TensorBoardFiles(tmp_path / "curves", after=2)
    for step in (3, 4):
        resumed.write(replace(STEP, step=step, loss=20.0 + step))
    resumed.close()
    read = accumulator.EventAccumulator(str(tmp_path / "curves")).Reload()
    lists = {"step", "packs", "predicted_work", "compute_times"}
    assert set(read.Tags()["scalars"]) == {*STEP.named()} - lists
    assert [(event.step, event.value) for event in read.Scalars("loss")] == [(1, 11), (2, 12), (3, 23), (4, 24)]
    assert [(event.step, event.value) for event in read.Scalars("eval_loss")] == [(2, 1.5)]


@pytest.mark.process  # wandb starts one
def test_a_resumed_run_goes_on_with_its_run_of_wandb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when a figure is not reported, a resumed run begins another one, or a new run goes on with an old one."""
    wandb = pytest.importorskip("wandb", reason="needs wandb, which make test-matrix installs")
    for name, value in {"WANDB_MODE": "offline", "WANDB_SILENT": "true", "WANDB_PROJECT": "tests"}.items():
        monkeypatch.setenv(name, value)
    ids = []
    for after, steps in ((0, (1, 2, 3)), (2, (3, 4)), (0, (1,))):
        run = WandbRun(tmp_path / "runs", after=after, config={"lr": 0.1})
        ids.append(wandb.run.id)
        for step in steps:
            run.write(replace(STEP, step=step, loss=10.0 + step))
        assert wandb.run.summary["loss"] == 10.0 + steps[-1]
        run.close()
    assert ids[0] == ids[1] != ids[2]
    assert [wandb.run is None, len(list((tmp_path / "runs" / "wandb").glob("offline-run-*")))] == [True, 3]
    monkeypatch.setattr(wandb, "init", lambda **_: (_ for _ in ()).throw(RuntimeError("no\nkey")))
    with pytest.raises(ConfigError, match=r"it starts no run \(no key\); run wandb login, or set WANDB_MODE=offline"):
        WandbRun(tmp_path / "runs", after=0)
