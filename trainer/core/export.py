"""The trained model as a folder for ``from_pretrained``."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from preshard.schemas.errors import ConfigError
from preshard.trainer.core.processes import first_problem
from preshard.trainer.extras import load_extra
from preshard.trainer.models.load import GENERATION, WEIGHTS, one_line

NOT_COPIED = (*WEIGHTS, "*.index.json", "*.bin", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.gguf", "config.json")
"""Files of a model folder that are written anew, or hold weights or a state of other programs."""


def export_model(
    model: Any, source: Path, target: Path, *, lora: Any = None, keep_adapters: bool = False, dtype: str | None = None
) -> None:
    """Writes weights in the form of published folders, and copies of the source's other files. All ranks call this.

    Parameters are gathered one by one on the CPU of rank 0, which then holds the whole model.

    Args:
        model: of ``transformers``, sharded or not.
        source: the folder that it was loaded from, with tokenizer and processors.
        target: the new folder.
        lora: the adapters in it, which ``peft`` adds to the weights that they are beside.
        keep_adapters: write these alone, as ``peft.PeftModel.from_pretrained`` loads them; nothing else is gathered.
        dtype: of the parameters in the files, by its name; by default the one that they have.

    Raises:
        ConfigError: rank 0 cannot write it. Every rank raises it, as none must wait for one that has given up.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=keep_adapters)
    weights = get_model_state_dict(model, options=options)
    problem = None
    if dist.get_rank() == 0:
        try:
            if lora is None:
                write_folder(model, weights, source, target, dtype)
            else:
                how: Any = {"lora": lora, "keep_adapters": keep_adapters, "dtype": dtype}
                load_extra("adapters").write(model, weights, source, target, **how)
        except ConfigError as error:
            problem = str(error)
    if (problem := first_problem(problem)) is not None:
        raise ConfigError(problem)


def write_folder(model: Any, weights: dict[str, Any], source: Path, target: Path, dtype: str | None = None) -> None:
    """Writes a model folder with whole weights. The folder appears under its name once it is whole.

    Args:
        model: of ``transformers``; its own parameters are not looked at.
        weights: by their names in the model.
        source: the folder whose other files are copied.
        target: the new folder.
        dtype: see :func:`export_model`.

    Raises:
        ConfigError: it cannot be written; nothing of it is left.
    """
    tied = getattr(model, "all_tied_weights_keys", {})
    with whole_folder(target) as unfinished:
        if (source / GENERATION).is_file():  # it is copied, even if transformers would not write such a one
            model.generation_config = type(model.generation_config)()
        # gathered from several ranks, a tied weight is two tensors
        own = {name: each for name, each in weights.items() if tied.get(name) not in weights}
        further, left_out = load_extra("further").further_layers(model, source)
        if left_out:
            click.echo(f"trainer: {target} has no {left_out}", err=True)
        model.save_pretrained(unfinished, state_dict=load_extra("rounded").rounded(own, dtype, model) | further)
        load_extra("rounded").declare(unfinished, dtype)
        for file in source.iterdir():
            if file.is_file() and not any(file.match(pattern) for pattern in NOT_COPIED):
                shutil.copy2(file, unfinished / file.name)


@contextmanager
def whole_folder(target: Path) -> Iterator[Path]:
    """A folder to write, which gets its name once that is done; if it fails, nothing is left."""
    unfinished = target.with_name(f"unfinished-{target.name}")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        yield unfinished
        unfinished.rename(target)
    except Exception as error:  # safetensors has exceptions of its own for a full disk
        shutil.rmtree(unfinished, ignore_errors=True)
        raise ConfigError(f"the model cannot be written to {target} ({one_line(error)})") from None
