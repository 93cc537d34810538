"""Figures of a run's steps for TensorBoard and Weights & Biases."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

from preshard.schemas.errors import ConfigError
from preshard.trainer.core.config import TrainConfig
from preshard.trainer.core.metrics import StepFigures, Writer


def open_trackers(config: TrainConfig, *, after: int) -> list[Writer]:
    """The trackers that a run asks for, from the step after which it continues."""
    assert config.report_dir is not None, "asked before"
    folder, settings = config.report_dir, config.model_dump(mode="json")
    return [
        TensorBoardFiles(folder, after=after)
        if kind == "tensorboard"
        else WandbRun(folder, after=after, config=settings)
        for kind in config.report_to
    ]


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
        for name, value in _numbers(figures).items():
            self._writer.add_scalar(name, value, figures.step)

    def close(self) -> None:
        self._writer.close()


WANDB_RUN = "wandb-run"
"""File of a folder with the id of the run that is reported from there."""


class WandbRun:
    """The same figures as a run of Weights & Biases, which the package's own variables name (``WANDB_PROJECT`` ...).

    Args:
        folder: for the package's files; created if missing. It remembers the run, which a resumed one continues.
        after: the step after which the run continues; with 0 it is a new one. Steps that are done again are not
            reported again.
        config: settings to show beside the run.

    Raises:
        ConfigError: the package does not start a run, as where nobody has logged in.
    """

    def __init__(self, folder: Path, *, after: int, config: Mapping[str, Any] | None = None) -> None:
        wandb: Any = import_module("wandb")
        folder.mkdir(parents=True, exist_ok=True)
        remembered = folder / WANDB_RUN
        if not after or not remembered.exists():
            remembered.write_text(uuid4().hex, encoding="utf-8")
        known = remembered.read_text(encoding="utf-8").strip()
        try:
            self._run: Any = wandb.init(dir=str(folder), id=known, resume="allow", config=dict(config or {}))
        except Exception as error:  # each of its errors has a class of its own
            raise ConfigError(
                f"--report-to wandb: it starts no run ({' '.join(str(error).split())[:200]}); run wandb login, or set "
                "WANDB_MODE=offline"
            ) from None

    def write(self, figures: StepFigures) -> None:
        self._run.log(_numbers(figures), step=figures.step, commit=True)

    def close(self) -> None:
        self._run.finish()


def _numbers(figures: StepFigures) -> dict[str, int | float]:
    """The figures that are a number each."""
    named = figures.named().items()
    return {name: value for name, value in named if isinstance(value, int | float) and name != "step"}
