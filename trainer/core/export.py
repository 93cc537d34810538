"""The trained model as a folder for ``from_pretrained``: at a run's end, or of a checkpoint by ``preshard.export``."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from preshard.extras import needed
from preshard.schemas.errors import ConfigError, PreshardError

with needed("trainer", "exporting", "train"):
    import click

import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from preshard.schemas.files.secrets import without_secrets
from preshard.trainer.core.checkpoint import (
    RUN,
    find_checkpoint,
    find_damaged,
    load_parameters,
    parameter_dtype,
    read_run_state,
)
from preshard.trainer.core.checksums import CHECKSUMS, first_fault
from preshard.trainer.core.extras import load_extra
from preshard.trainer.core.processes import first_problem
from preshard.trainer.models.folder import WEIGHTS, identity, one_line, read_model_config
from preshard.trainer.models.further import further_layers
from preshard.trainer.models.load import GENERATION, load_sharded
from preshard.trainer.models.packed import PackedModel

NOT_COPIED = (*WEIGHTS, "*.index.json", "*.pt", "*.pth", "*.h5", "*.msgpack", "*.gguf", "config.json")
"""Files of a model folder that are written anew, or hold weights of other programs."""


def check_export(target: Path, option: str = "--export") -> None:
    """Checks that a model can be exported to a folder, which an option names.

    Raises:
        ConfigError: there is something under this name.
    """
    if target.exists():
        raise ConfigError(f"{option} is {target}, which exists; name a folder that does not")


def export_model(model: Any, source: Path, target: Path, *, lora: Any = None, keep_adapters: bool = False) -> None:
    """Writes weights in the form of published folders, and copies of the source's other files. All ranks call this.

    Parameters keep their dtype. They are gathered one by one on the CPU of rank 0, which then holds the whole model.

    Args:
        model: of ``transformers``, sharded or not.
        source: the folder that it was loaded from, with tokenizer and processors.
        target: the new folder.
        lora: the adapters in it, which ``peft`` adds to the weights that they are beside.
        keep_adapters: write these alone, as ``peft.PeftModel.from_pretrained`` loads them; nothing else is gathered.

    Raises:
        ConfigError: rank 0 cannot write it. Every rank raises it, as none must wait for one that has given up.
    """
    options = StateDictOptions(full_state_dict=True, cpu_offload=True, ignore_frozen_params=keep_adapters)
    weights = get_model_state_dict(model, options=options)
    problem = None
    if dist.get_rank() == 0:
        try:
            if lora is None:
                write_folder(model, weights, source, target)
            else:
                load_extra("adapters").write(model, weights, source, target, lora=lora, keep_adapters=keep_adapters)
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
    tied = getattr(model, "all_tied_weights_keys", {})
    with whole_folder(target) as unfinished:
        if (source / GENERATION).is_file():  # it is copied, even if transformers would not write such a one
            model.generation_config = type(model.generation_config)()
        # gathered from several ranks, a tied weight is two tensors
        own = {name: each for name, each in weights.items() if tied.get(name) not in weights}
        further, left_out = further_layers(model, source)
        if left_out:
            click.echo(f"trainer: {target} has no {left_out}", err=True)
        model.save_pretrained(unfinished, state_dict=own | further)
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


def export_checkpoint(checkpoint: Path, model: Path, out: Path, *, keep_adapters: bool = False) -> Path:
    """Writes the model of a checkpoint, written by any number of ranks, in this one process.

    Parameters have the dtype that they were trained in. The process holds the whole model.

    Args:
        checkpoint: one checkpoint, or a folder of them, of which the newest is taken.
        model: the model folder that was trained, with tokenizer and processors; its weights are read only if adapters
            were trained.
        out: the new folder.
        keep_adapters: write adapters alone, and do not add them to the model's weights.

    Returns:
        The checkpoint that was taken.

    Raises:
        ConfigError: there is no checkpoint, it is of another model, it has no adapters to keep, or the folder cannot be
            written.
    """
    check_export(out, "--out")
    if (checkpoint / RUN).is_file() or (checkpoint / CHECKSUMS).is_file():
        if (fault := first_fault(checkpoint)) is not None:
            raise ConfigError(f"{checkpoint} is damaged ({fault}); give another checkpoint")
        found: Path | None = checkpoint
    else:
        damaged = find_damaged(checkpoint)
        found = find_checkpoint(checkpoint, damaged)
        for name, fault in damaged.items():
            if found is None:
                raise ConfigError(f"{checkpoint / name} is damaged ({fault}), and there is no other checkpoint")
            click.echo(f"trainer: the checkpoint {name} is damaged, and passed over ({fault})", err=True)
    if found is None:
        raise ConfigError(f"{checkpoint} holds no checkpoint; give a folder that was the --checkpoint of a run")
    read_model_config(model)
    state = read_run_state(found)
    trained, given = state.model, identity(model, with_weights="weights" in state.model)
    if trained != given:
        raise ConfigError(
            f"{found} is of the model {' '.join(map(str, trained.values()))}, and --model {model} is "
            f"{' '.join(given.values())}: give the folder that was trained"
        )
    adapters = state.parts.get("lora")
    if keep_adapters and adapters is None:
        raise ConfigError(f"--keep-adapters is given, but {found} has no adapters: leave it out")
    extra = None if adapters is None else load_extra("adapters")
    try:
        packed = load_sharded(
            model,
            lambda base: PackedModel(base if extra is None else extra.wrap(base, adapters)),
            dtype=parameter_dtype(found),
            weights="none" if extra is None else "folder",
        )
        load_parameters(found, packed)
    except PreshardError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise ConfigError(f"{found} cannot be read ({one_line(error)})") from None
    if keep_adapters and extra is not None:
        extra.write_adapters(packed.inner, packed.state_dict(), model, out)
    else:
        whole: Any = packed.inner if extra is None else packed.merge_and_unload()
        write_folder(whole, whole.state_dict(), model, out)
    return found


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--model", type=click.Path(path_type=Path), required=True, help="Model folder that the run started from.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="New folder for the model.")
@click.option("--keep-adapters", is_flag=True, help="Write adapters alone, as peft loads them, and do not merge them.")
def cli(checkpoint: Path, model: Path, out: Path, keep_adapters: bool) -> None:
    """Writes the model of CHECKPOINT as a folder that from_pretrained loads.

    CHECKPOINT is one checkpoint of preshard.train, or the folder that --checkpoint named, whose newest is taken.
    """
    taken = export_checkpoint(checkpoint, model, out, keep_adapters=keep_adapters)
    click.echo(f"{out}: the {'adapters' if keep_adapters else 'model'} of {taken}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. Exit status: 0 done; 2 something does not fit or cannot be written."""
    try:
        cli.main(args=arguments, prog_name="python -m preshard.export", standalone_mode=False)
    except click.ClickException as error:
        problem = f"{error.format_message()} (--help lists the options)"
    except PreshardError as error:
        problem = " ".join(str(error).split())
    else:
        return
    click.echo(without_secrets(f"trainer: {problem}"), err=True)
    sys.exit(2)


if __name__ == "__main__":
    main()
