"""What TensorBoard reads of the figures that the trainer writes for it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from preshard.trainer.metrics import StepFigures, TensorBoardFiles

STEP = StepFigures(
    step=1,
    loss=2.5,
    grad_norm=0.5,
    tokens=900,
    loss_weight=80.0,
    step_time=0.25,
    data_time=0.0,
    bytes_read=4096,
    lr=1e-3,
    epoch=0,
    packs=[3, 1],
    tokens_per_second=3600.0,
    tflops=0.001,
    mfu=None,
    predicted_work=[0.1, 0.2],
    compute_times=[0.1, 0.2],
    predicted_imbalance=1.33,
    measured_imbalance=1.33,
    rewards={"chosen": 0.5},
)


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
    assert set(read.Tags()["scalars"]) == {*STEP.named()} - lists - {"mfu"}
    assert [(event.step, event.value) for event in read.Scalars("loss")] == [(1, 11), (2, 12), (3, 23), (4, 24)]
    assert [(event.step, event.value) for event in read.Scalars("eval_loss")] == [(2, 1.5)]
