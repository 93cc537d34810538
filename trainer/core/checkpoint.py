"""Checkpoints: each is written whole or not at all, and loads on any number of ranks."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_state_dict,
)
from torch.optim import Optimizer

from preshard.schemas.errors import ConfigError, PreshardError
from preshard.trainer.core.processes import first_problem
from preshard.trainer.extras import load_extra

RUN = "run.json"
"""File of a checkpoint that holds its :class:`RunState`; the other files are torch's."""


NO_FOLDER = [os.strerror(number) for number in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EROFS, errno.ESTALE)]
"""Reasons for which more space would not help."""


class SaveError(PreshardError):
    """A checkpoint cannot be written."""


@dataclass(frozen=True, kw_only=True)
class RunState:
    """State that a run needs in order to continue, besides parameters and the optimiser's moments.

    Attributes:
        step: optimiser steps done.
        data: position in the dataset, as ``RankBatch.state`` gave it; it names the dataset and the seed of its order.
        model: what tells the model from others, such as its kind; its values are shown in messages.
        parts: what of the model trains; empty if all of it does.
    """

    step: int
    data: dict[str, Any]
    model: dict[str, Any]
    parts: dict[str, Any] = field(default_factory=dict)

    def check_same_run(self, new: RunState, where: Path) -> None:
        """Checks that a run which would start as ``new`` may continue from here instead.

        Raises:
            ConfigError: it has another dataset, seed or model, or something else of the model trains.
        """
        names = [name for name in new.model if name in self.model]  # where parts differ, one may name its weights alone
        there_model, here_model = (" ".join(str(each[name]) for name in names) for each in (self.model, new.model))
        for what, there, here in (
            ("dataset", self.data["dataset_id"], new.data["dataset_id"]),
            ("seed", self.data["seed"], new.data["seed"]),
            ("model", there_model, here_model),
        ):
            if here != there:
                raise ConfigError(
                    f"{where} is of {what} {there}, not {here}: resume with the {what} it was started with, or give "
                    f"another --checkpoint folder"
                )
        if self.parts.get("names") != new.parts.get("names"):
            there, here = (each.parts.get("options", "neither --freeze nor --lora") for each in (self, new))
            raise ConfigError(
                f"{where} was trained with {there}, not with {here}: resume with the options it was started with, or "
                "give another --checkpoint folder"
            )


def find_checkpoint(folder: Path, without: Collection[str] = ()) -> Path | None:
    """The newest checkpoint in a folder, if any. An unfinished one has another name, so it is never found.

    Args:
        folder: holds checkpoints.
        without: names of those that are passed over.
    """
    return max((path for path in whole_checkpoints(folder) if path.name not in without), key=step_of, default=None)


def whole_checkpoints(folder: Path) -> list[Path]:
    return [path for path in folder.glob("step-*") if re.fullmatch(r"step-\d+", path.name)]


def step_of(path: Path) -> int:
    return int(path.name.removeprefix("step-"))


def read_run_state(checkpoint: Path) -> RunState:
    """The state that a checkpoint holds.

    Raises:
        ConfigError: its ``run.json`` is missing, damaged or lacks a field.
    """
    try:
        stored = json.loads((checkpoint / RUN).read_text(encoding="utf-8"))
        return RunState(**{each.name: stored[each.name] for each in fields(RunState)})
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(
            f"{checkpoint / RUN} is not a valid description of a checkpoint ({error!r}); "
            f"remove {checkpoint} to use the previous one"
        ) from None


class Checkpoints:
    """The checkpoints that a run writes into a folder. All ranks make one, and call its methods at the same places.

    Each rank writes its own part into a folder under another name, which rank 0 renames once every part is on the disk.
    A job killed at any moment leaves the checkpoints that it had before, or those and the new one.

    Args:
        folder: visible to all ranks.
        keep: the newest so many checkpoints are kept.
        beside: write while the next steps run. Only the copy of the state into the host's memory is waited for.
        damaged: names of checkpoints in the folder that are damaged; they get others, so that new ones can have theirs.
    """

    def __init__(self, folder: Path, *, keep: int, beside: bool = False, damaged: Collection[str] = ()) -> None:
        self._folder, self._keep, self._damaged = folder, keep, damaged
        # Writers agree by collectives, which among those of the steps would meet in another order on each rank.
        self._group = dist.new_group(backend="gloo") if beside else None
        self._writing: tuple[Any, RunState, Any] | None = None

    def save(self, model: nn.Module, optimizer: Optimizer, state: RunState, *, wait: bool = False) -> None:
        """Writes the state after a step, or begins to. A save that is still being written is waited for first, and with
        ``wait`` this one, too.

        Raises:
            SaveError: a rank cannot write its part. Every rank raises it.
        """
        self.finish()
        unfinished = self._path(state, unfinished=True)
        self._on_rank_0(state, self._make_room, unfinished)
        parameters, moments = _states(model, optimizer)
        stored = {"model": parameters, "optimizer": moments}
        writer = load_extra("checkpoint_check").SummedWriter(unfinished)
        if self._group is None:
            try:
                dcp.save(stored, storage_writer=writer)
            except CheckpointException as error:
                raise self._failed(state, one_reason(error)) from None
            self._on_rank_0(state, self._publish, state, writer)
        else:
            self._writing = dcp.async_save(stored, storage_writer=writer, process_group=self._group), state, writer
        if wait:
            self.finish()

    def look(self) -> None:
        """Gives a checkpoint its name if it is whole by now. Called between steps; waits for nothing.

        Raises:
            SaveError: it could not be written. A rank raises it when it looks, or finishes, for the first time after.
        """
        if self._writing is not None and self._writing[0].done():
            self.finish()

    def finish(self) -> None:
        """Waits until nothing is being written any more.

        Raises:
            SaveError: see :meth:`look`.
        """
        if self._writing is None:
            return
        writing, state, writer = self._writing
        self._writing = None
        try:
            writing.result()
            if dist.get_rank() == 0:
                self._publish(state, writer)
        except (CheckpointException, OSError) as error:
            raise self._failed(state, one_reason(error)) from None

    def _on_rank_0(self, state: RunState, what: Callable[..., None], *arguments: Any) -> None:
        """Runs a function on rank 0 while the others wait, and fails on all ranks if it fails there."""
        problem = None
        if dist.get_rank() == 0:
            try:
                what(*arguments)
            except OSError as error:
                problem = one_reason(error)
        if (problem := first_problem(problem)) is not None:
            raise self._failed(state, problem)

    def _failed(self, state: RunState, reason: str) -> SaveError:
        newest = find_checkpoint(self._folder)
        left = "no checkpoint is there yet" if newest is None else f"{newest.name} is whole"
        mended = "make it a folder that all ranks can write to" if reason in NO_FOLDER else "free some space there"
        return SaveError(
            f"the checkpoint after step {state.step} cannot be written to {self._folder} ({reason}), and {left}: "
            f"{mended}, then use --resume"
        )

    def _path(self, state: RunState, *, unfinished: bool = False) -> Path:
        return self._folder / ("unfinished-" * unfinished + f"step-{state.step:08d}")

    def _make_room(self, unfinished: Path) -> None:
        _remove(self._folder.glob("unfinished-*"))
        for name in self._damaged:
            aside = self._folder / f"damaged-{name}"
            shutil.rmtree(aside, ignore_errors=True)
            (self._folder / name).rename(aside)
        self._damaged = ()
        unfinished.mkdir(parents=True)

    def _publish(self, state: RunState, writer: Any) -> None:
        """Publishes the checkpoint on rank 0, whose part of a save ends after all others'."""
        unfinished = self._path(state, unfinished=True)
        load_extra("checkpoint_check").join_sums(unfinished, writer, {RUN: json.dumps(asdict(state)).encode()})
        _sync(unfinished)
        unfinished.rename(self._path(state))
        _sync(self._folder)
        _remove(sorted(whole_checkpoints(self._folder), key=step_of)[: -self._keep])


def load_checkpoint(checkpoint: Path, model: nn.Module, optimizer: Optimizer) -> None:
    """Fills a model and its optimiser from a checkpoint written by any number of ranks. All ranks call this.

    Raises:
        ConfigError: the checkpoint is damaged, or lacks something.
    """
    options = stored_options(model)
    parameters, moments = get_state_dict(model, optimizer, options=options)
    try:
        dcp.load({"model": parameters, "optimizer": moments}, checkpoint_id=checkpoint)
    except CheckpointException as error:
        raise ConfigError(f"{checkpoint} cannot be read ({one_reason(error)}); use the previous checkpoint") from None
    set_state_dict(model, optimizer, model_state_dict=parameters, optim_state_dict=moments, options=options)


def stored_options(model: nn.Module) -> StateDictOptions:
    """Options for what is stored of a model: all, or what trains if it has adapters, as the rest is in its folder."""
    has_adapters = any(hasattr(module, "base_layer") for module in model.modules())
    return StateDictOptions(ignore_frozen_params=has_adapters, strict=not has_adapters)


def _states(model: nn.Module, optimizer: Optimizer) -> tuple[dict[str, Any], dict[str, Any]]:
    """Parameters and moments. Those of a new optimiser are zeros, and it has done no step."""
    if not optimizer.state:
        get_state_dict(
            model, optimizer, options=stored_options(model)
        )  # makes the moments by a step with gradients of zero, and counts that step
        for moments in optimizer.state.values():
            moments["step"].zero_()
    parameters, of_optimizer = get_state_dict(model, optimizer, options=stored_options(model))
    return parameters, dict(of_optimizer)


def one_reason(error: BaseException) -> str:
    """The error in one line: that of the first rank that failed, if torch has asked all."""
    if isinstance(error, CheckpointException):
        error = next(iter(error.failures.values()))[0]
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return f"{type(error).__name__} {' '.join(str(error).split())[:200]}".strip()


def _remove(folders: Iterable[Path]) -> None:
    for path in folders:
        shutil.rmtree(path)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
