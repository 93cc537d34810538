"""Check of what a run will write, before its first step: hours later there would be nobody to name another place."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from preshard.schemas.errors import ConfigError
from preshard.trainer.core.config import TrainConfig, option
from preshard.trainer.core.processes import first_problem
from preshard.trainer.extras import load_extra


def find_unwritable(config: TrainConfig, rank: int, after: int) -> str | None:
    """Problem that keeps a rank from writing what the options ask it for, if there is one; names the option. All ranks
    call this, and learn the same.

    Args:
        config: the settings.
        rank: this process; all but traces are written by the first.
        after: the step after which the run continues.
    """
    problem = first_problem(unwritable_here(config, rank, after))
    if problem is None and config.checkpoint is not None:
        problem = load_extra("checkpoint_check").find_unshared(config.checkpoint)
    return problem


def unwritable_here(config: TrainConfig, rank: int, after: int) -> str | None:
    """The same of this rank alone, but for checkpoints. Folders are made where they are missing."""
    try:
        _check_outputs(config, rank, after)
    except ConfigError as problem:
        return str(problem)
    return None


def check_export(target: Path, named_by: str = "--export") -> None:
    """Checks that rank 0 can export a model to a new folder, without making any.

    Args:
        target: the folder.
        named_by: the option.

    Raises:
        ConfigError: there is something under this name, or it cannot be made.
    """
    if target.exists():
        raise ConfigError(f"{named_by} is {target}, which exists; name a folder that does not")
    there = next(each for each in target.absolute().parents if each.exists())
    if os.environ.get("RANK", "0") == "0" and not os.access(there, os.W_OK):
        raise ConfigError(f"{named_by} is {target}, and {there} is not writable; name another place")


def _check_outputs(config: TrainConfig, rank: int, after: int) -> None:
    if config.profile is not None:
        _check_folder("profile", config.profile, config.profile)
    if rank != 0:
        return
    for name, path in (("report_dir", config.report_dir), ("export", config.export), ("metrics", config.metrics)):
        if path is not None:
            _check_folder(name, path, path if name == "report_dir" else path.absolute().parent)
    if config.metrics is not None:
        _check_metrics(config.metrics, after)


def _check_folder(name: str, path: Path, folder: Path) -> None:
    """Checks that a folder can be made and written into, for an option's path."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        reason = "a file is in its way" if isinstance(error, FileExistsError) else error.strerror
        raise ConfigError(
            f"{option(name)} is {path}, which cannot be written ({reason}); give a path in a folder that can"
        ) from None


def _check_metrics(path: Path, after: int) -> None:
    if path.is_dir():
        raise ConfigError(f"--metrics is {path}, which is a folder; give a file, such as {path / 'metrics.jsonl'}")
    if not after or not path.exists():
        return
    try:
        for line in path.read_text(encoding="utf-8").split("\n")[:-1]:  # a killed process can leave half of one
            int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        raise ConfigError(
            f"--metrics is {path}, which a resumed run continues, and it holds other lines than those of steps; give "
            "another file"
        ) from None
