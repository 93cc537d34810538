"""The command ``preshard.export``: the model of a checkpoint as a folder for ``from_pretrained``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from preshard.extras import needed
from preshard.schemas.errors import ConfigError, PreshardError

with needed("trainer", "exporting", "train"):
    import click

from preshard.schemas.secrets import without_secrets
from preshard.trainer.distributed.checkpoint import find_checkpoint, load_parameters, parameter_dtype, read_run_state
from preshard.trainer.models.export import check_export, write_folder
from preshard.trainer.models.folder import identity, one_line, read_model_config
from preshard.trainer.models.load import load_sharded
from preshard.trainer.models.packed import PackedModel


def export_checkpoint(checkpoint: Path, model: Path, out: Path) -> Path:
    """Writes the model of a checkpoint, written by any number of ranks, in this one process.

    Parameters have the dtype that they were trained in. The process holds the whole model.

    Args:
        checkpoint: one checkpoint, or a folder of them, of which the newest is taken.
        model: the model folder that was trained, with tokenizer and processors; its weights are not read.
        out: the new folder.

    Returns:
        The checkpoint that was taken.

    Raises:
        ConfigError: there is no checkpoint, it is of another model, or the folder cannot be written.
    """
    check_export(out, "--out")
    found = checkpoint if (checkpoint / "run.json").is_file() else find_checkpoint(checkpoint)
    if found is None:
        raise ConfigError(f"{checkpoint} holds no checkpoint; give a folder that was the --checkpoint of a run")
    read_model_config(model)
    trained, given = read_run_state(found).model, identity(model)
    if trained != given:
        raise ConfigError(
            f"{found} is of the model {' '.join(map(str, trained.values()))}, and --model {model} is "
            f"{' '.join(given.values())}: give the folder that was trained"
        )
    try:
        packed = load_sharded(model, PackedModel, dtype=parameter_dtype(found), weights="none")
        load_parameters(found, packed)
    except PreshardError:
        raise
    except (OSError, RuntimeError, ValueError, KeyError) as error:
        raise ConfigError(f"{found} cannot be read ({one_line(error)})") from None
    write_folder(packed.model, packed.model.state_dict(), model, out)
    return found


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("checkpoint", type=click.Path(path_type=Path))
@click.option("--model", type=click.Path(path_type=Path), required=True, help="Model folder that the run started from.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="New folder for the model.")
def cli(checkpoint: Path, model: Path, out: Path) -> None:
    """Writes the model of CHECKPOINT as a folder that from_pretrained loads.

    CHECKPOINT is one checkpoint of preshard.train, or the folder that --checkpoint named, whose newest is taken.
    """
    click.echo(f"{out}: the model of {export_checkpoint(checkpoint, model, out)}")


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
