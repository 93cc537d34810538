"""Writes a trained model as a folder that ``from_pretrained`` loads."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from schemas.errors import ConfigError
from trainer.models.folder import WEIGHTS

NOT_COPIED = (*WEIGHTS, "*.index.json", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.gguf", "config.json")
"""Files of a model folder that are written anew, or hold weights of other programs."""


def check_export(target: Path) -> None:
    """Checks that a model can be exported to a folder.

    Raises:
        ConfigError: there is something under this name.
    """
    if target.exists():
        raise ConfigError(f"--export is {target}, which exists; name a folder that does not")


def export_model(model: Any, source: Path, target: Path) -> None:
    """Writes weights in the form of published folders, and copies of the source's other files. All ranks call this.

    Parameters keep their dtype. They are gathered one by one on the CPU of rank 0, which then holds the whole model.
    The folder appears under its name once it is whole.

    Args:
        model: of ``transformers``, sharded or not.
        source: the folder that it was loaded from, with tokenizer and processors.
        target: the new folder.
    """
    weights = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
    if dist.get_rank() == 0:
        unfinished = target.with_name(f"unfinished-{target.name}")
        shutil.rmtree(unfinished, ignore_errors=True)
        model.save_pretrained(unfinished, state_dict=weights)
        for file in source.iterdir():
            if file.is_file() and not any(file.match(pattern) for pattern in NOT_COPIED):
                shutil.copy2(file, unfinished / file.name)
        unfinished.rename(target)
    dist.barrier()
