"""Checkpoints: written whole or not at all, and loaded on any number of ranks."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.optim import Optimizer

from schemas.errors import ConfigError

RUN = "run.json"
"""File of a checkpoint that holds its :class:`RunState`; the other files are torch's."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """What a run must know to go on, beside parameters and the optimiser's moments.

    Attributes:
        step: optimiser steps done.
        data: position in the dataset, as ``RankBatch.state`` gave it.
        dataset_id: the dataset's.
        seed: the seed that its order was made with.
        model: the model's dimensions.
    """

    step: int
    data: dict[str, Any]
    dataset_id: str
    seed: int
    model: dict[str, Any]

    def check_same_run(self, other: RunState, where: Path) -> None:
        """Whether a run that would begin as ``other`` can go on from here.

        Raises:
            ConfigError: it has another dataset, seed or model.
        """
        for name, what in (("dataset_id", "dataset"), ("seed", "seed"), ("model", "model")):
            here, there = getattr(other, name), getattr(self, name)
            if here != there:
                raise ConfigError(
                    f"{where} is of {what} {there}, not {here}: go on with what it began with, or give another folder"
                )


def find_checkpoint(folder: Path) -> Path | None:
    """The newest whole checkpoint of a folder. An unfinished one has another name, so it is never found."""
    return max(_whole(folder), key=_step, default=None)


def _whole(folder: Path) -> list[Path]:
    return [path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name)]


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def read_run_state(checkpoint: Path) -> RunState:
    """Raises ConfigError: the checkpoint's ``run.json`` is missing or not what this version wrote."""
    try:
        return RunState(**json.loads((checkpoint / RUN).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{checkpoint / RUN} is not a checkpoint's ({error}); remove {checkpoint}") from None


def save_checkpoint(folder: Path, model: nn.Module, optimizer: Optimizer, state: RunState, *, keep: int) -> None:
    """Writes the state after a step, then removes all but the newest ``keep``. All ranks call this.

    Each rank writes its own part into a folder with another name, which rank 0 renames when every part is on the disk.
    A job killed at any moment leaves the checkpoints that it had before, or one more.
    """
    final = folder / f"step-{state.step:08d}"
    unfinished = folder / f"unfinished-{final.name}"
    if dist.get_rank() == 0:
        _remove(folder.glob("unfinished-*"))
        unfinished.mkdir(parents=True)
    dist.barrier()
    parameters, moments = get_state_dict(model, optimizer)
    dcp.save({"model": parameters, "optimizer": moments}, checkpoint_id=unfinished)
    if dist.get_rank() == 0:
        (unfinished / RUN).write_text(json.dumps(asdict(state)), encoding="utf-8")
        _sync(unfinished / RUN)
        _sync(unfinished)
        unfinished.rename(final)
        _sync(folder)
        _remove(sorted(_whole(folder), key=_step)[:-keep])


def load_checkpoint(checkpoint: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Fills a model and its optimiser from a checkpoint, whatever number of ranks wrote it. All ranks call this."""
    parameters, moments = get_state_dict(model, optimizer)
    dcp.load({"model": parameters, "optimizer": moments}, checkpoint_id=checkpoint)
    set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=moments)


def _remove(folders: Iterable[Path]) -> None:
    for path in folders:
        shutil.rmtree(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
