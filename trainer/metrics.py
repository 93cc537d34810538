"""The figures of each step, as JSON Lines and for TensorBoard."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TextIO


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFigures:
    """One optimiser step over all ranks. Except for the times, nothing depends on how many ranks share the work.

    Attributes:
        step: number of the step, from 1.
        loss: sum of weight x cross entropy over all tokens by the sum of weights. None if no token has a weight.
        grad_norm: norm of the gradient of ``loss``, before clipping. None if ``loss`` is.
        tokens: tokens without padding.
        loss_weight: sum of the loss weights.
        step_time: seconds that the step took on this rank.
        data_time: seconds of it that the slowest rank waited for its packs.
        bytes_read: bytes that all ranks together asked from shards.
        lr: learning rate.
        epoch: epoch of the packs, from 0.
        packs: ids of the packs, in the order of the epoch.
        tokens_per_second: ``tokens`` by ``step_time``.
        tflops: work of the step in 10^12 operations per second and process (see :mod:`preshard.trainer.throughput`).
        mfu: ``tflops`` by those that the device can do. None if nobody said how many.
        predicted_work: of each rank, in 10^12 operations.
        compute_times: processor seconds of each rank's forward and backward passes. Empty on CUDA, where
            waiting for other ranks counts as computing: a profile shows it.
        predicted_imbalance: the largest of ``predicted_work`` by their mean. None if there is no work.
        measured_imbalance: the same of ``compute_times``.
        eval_loss: mean loss on the second dataset, in steps after which it is taken.
    """

    step: int
    loss: float | None
    grad_norm: float | None
    tokens: int
    loss_weight: float
    step_time: float
    data_time: float
    bytes_read: int
    lr: float
    epoch: int
    packs: list[int]
    tokens_per_second: float
    tflops: float
    mfu: float | None
    predicted_work: list[float]
    compute_times: list[float]
    predicted_imbalance: float | None
    measured_imbalance: float | None
    eval_loss: float | None = None


class MetricsFile:
    """A file of JSON Lines with one line per step, however often the run was stopped and resumed.

    Args:
        path: the file. Its folder is created if missing.
        after: the step after which the run continues. Lines up to it are kept; later ones belong to steps that will be
            done again. With 0 the file starts empty.
    """

    def __init__(self, path: Path, *, after: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = [line for line in _whole_lines(path) if json.loads(line)["step"] <= after] if after else []
        whole = path.with_name(f"{path.name}.tmp")
        whole.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        whole.replace(path)
        self._path = path
        self._file: TextIO = path.open("a", encoding="utf-8")

    def write(self, figures: StepFigures) -> None:
        """Appends a step. It is in the file when this returns, even if the process is killed next.

        Raises:
            OSError: it cannot be written; names the file.
        """
        try:
            self._file.write(json.dumps(asdict(figures)) + "\n")
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None

    def close(self) -> None:
        self._file.close()


class TensorBoardFiles:
    """The same figures for TensorBoard: one curve for each that is a number.

    Args:
        folder: created if missing.
        after: the step after which the run continues; what was written of later ones is not shown.
    """

    def __init__(self, folder: Path, *, after: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder, purge_step=after + 1)

    def write(self, figures: StepFigures) -> None:
        for name, value in asdict(figures).items():
            if isinstance(value, int | float) and name != "step":
                self._writer.add_scalar(name, value, figures.step)

    def close(self) -> None:
        self._writer.close()


def _whole_lines(path: Path) -> list[str]:
    """The complete lines: a killed process can leave half of one."""
    if not path.exists():
        return []
    return path.read_text(encoding="utf-8").split("\n")[:-1]
