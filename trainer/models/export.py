"""Writes a trained model as a folder that ``from_pretrained`` loads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from preshard.schemas.errors import ConfigError
from preshard.trainer.distributed.processes import first_problem
from preshard.trainer.models.folder import WEIGHTS, one_line

NOT_COPIED = (*WEIGHTS, "*.index.json", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.gguf", "config.json")
"""Files of a model folder that are written anew, or hold weights of other programs."""


def check_export(target: Path, option: str = "--export") -> None:
    """Checks that a model can be exported to a folder, which an option names.

    Raises:
        ConfigError: there is something under this name.
    """
    if target.exists():
        raise ConfigError(f"{option} is {target}, which exists; name a folder that does not")


def export_model(model: Any, source: Path, target: Path) -> None:
    """Writes weights in the form of published folders, and copies of the source's other files. All ranks call this.

    Parameters keep their dtype. They are gathered one by one on the CPU of rank 0, which then holds the whole model.

    Args:
        model: of ``transformers``, sharded or not.
        source: the folder that it was loaded from, with tokenizer and processors.
        target: the new folder.

    Raises:
        ConfigError: rank 0 cannot write it. Every rank raises it, as none must wait for one that has given up.
    """
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    problem = None
    if dist.get_rank() == 0:
        try:
            write_folder(model, weights, source, target)
        except ConfigError as error:
            problem = str(error)
    if (problem := first_problem(problem)) is not None:
        raise ConfigError(problem)


def write_folder(model: Any, weights: dict[str, Any], source: Path, target: Path) -> None:
    """Writes a model folder with whole weights. The folder appears under its name once it is whole.

    Args:
        model: of ``transformers``; its own parameters are not looked at.
        weights: by their names in the model.
        source: the folder whose other files are copied.
        target: the new folder.

    Raises:
        ConfigError: it cannot be written; nothing of it is left.
    """
    unfinished = target.with_name(f"unfinished-{target.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        model.save_pretrained(unfinished, state_dict=weights)
        for file in source.iterdir():
            if file.is_file() and not any(file.match(pattern) for pattern in NOT_COPIED):
                shutil.copy2(file, unfinished / file.name)
        unfinished.rename(target)
    except Exception as error:  # safetensors has exceptions of its own for a full disk
        shutil.rmtree(unfinished, ignore_errors=True)
        raise ConfigError(f"the model cannot be written to {target} ({one_line(error)})") from None
