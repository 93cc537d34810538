"""The trained model of a checkpoint as a folder for ``from_pretrained``: the command ``preshard.export``."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from preshard.extras import needed

with needed("trainer", "exporting", "train"):
    import click

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    set_model_state_dict,
)

from preshard.schemas.errors import ConfigError, PreshardError
from preshard.schemas.files.printed import without_secrets
from preshard.trainer.core.checkpoint import RUN, find_checkpoint, one_reason, read_run_state, stored_options
from preshard.trainer.core.export import write_folder
from preshard.trainer.extra.checkpoint_check import CHECKSUMS, find_damaged, first_fault
from preshard.trainer.extra.waiting import doing
from preshard.trainer.extras import load_extra
from preshard.trainer.models.load import identity, load_sharded, one_line, read_model_config
from preshard.trainer.models.packed import PackedModel


def export_checkpoint(
    checkpoint: Path, model: Path, out: Path, *, keep_adapters: bool = False, dtype: str | None = None
) -> Path:
    """Writes the model of a checkpoint, written by any number of ranks, in this one process.

    The process holds the whole model.

    Args:
        checkpoint: one checkpoint, or a folder of them, of which the newest is taken.
        model: the model folder that was trained, with tokenizer and processors; its weights are read only if adapters
            were trained.
        out: the new folder.
        keep_adapters: write adapters alone, and do not add them to the model's weights.
        dtype: of the parameters in the files, by its name; by default the one that they were trained in.

    Returns:
        The checkpoint that was taken.

    Raises:
        ConfigError: there is no checkpoint, it is of another model, it has no adapters to keep, or the folder cannot be
            written.
    """
    load_extra("outputs").check_export(out, "--out")
    doing("checking the checkpoint")
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
    doing("reading the checkpoint")
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
    doing("writing the folder")
    if keep_adapters and extra is not None:
        extra.write_adapters(packed.inner, load_extra("rounded").rounded(packed.state_dict(), dtype), model, out)
    else:
        whole: Any = packed.inner if extra is None else packed.merge_and_unload()
        write_folder(whole, whole.state_dict(), model, out, dtype)
    return found


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--model", type=click.Path(path_type=Path), required=True, help="Model folder that the run started from.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="New folder for the model.")
@click.option("--keep-adapters", is_flag=True, help="Write adapters alone, as peft loads them, and do not merge them.")
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16"]), help="Dtype of the parameters; by default that of training."
)
def cli(checkpoint: Path, model: Path, out: Path, keep_adapters: bool, dtype: str | None) -> None:
    """Write the model of CHECKPOINT as a folder that from_pretrained loads.

    CHECKPOINT is one checkpoint of preshard.train, or the folder that --checkpoint named, whose newest is taken.
    """
    taken = export_checkpoint(checkpoint, model, out, keep_adapters=keep_adapters, dtype=dtype)
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


def load_parameters(checkpoint: Path, model: nn.Module) -> None:
    """Fills a model alone from a checkpoint written by any number of ranks, in one process or in all of a job.

    Raises:
        ConfigError: the checkpoint is damaged, or lacks a parameter.
    """
    options = stored_options(model)
    parameters = get_model_state_dict(model, options=options)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # which is meant
            dcp.load({"model": parameters}, checkpoint_id=checkpoint, no_dist=not dist.is_initialized())
    except CheckpointException as error:
        raise ConfigError(f"{checkpoint} cannot be read ({one_reason(error)}); use the previous checkpoint") from None
    set_model_state_dict(model, parameters, options=options)


def parameter_dtype(checkpoint: Path) -> torch.dtype:
    """The dtype of a checkpoint's parameters.

    Raises:
        ConfigError: it holds none.
    """
    stored = dcp.FileSystemReader(checkpoint).read_metadata().state_dict_metadata
    dtypes = Counter(
        entry.properties.dtype
        for name, entry in stored.items()
        if name.startswith("model.") and isinstance(entry, TensorStorageMetadata)
    )
    if not dtypes:
        raise ConfigError(f"{checkpoint} holds no parameters; use another checkpoint")
    return dtypes.most_common(1)[0][0]  # a few buffers may have another


if __name__ == "__main__":
    main()
