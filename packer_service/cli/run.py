"""The entry point: all commands, those that make something to try, and errors as one line and an exit status."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from preshard.packer_service.cli.datasets import advise, annotate, card, energon, report, serve, verify
from preshard.packer_service.cli.options import say, shown_progress
from preshard.packer_service.cli.sources import pack, plan, show, suggest
from preshard.packer_service.demo.families import FAMILIES
from preshard.packer_service.runtime.interrupt import INTERRUPTED, Interrupted, exit_at_once, interruptible
from preshard.packer_service.runtime.patience import is_waited_for
from preshard.packer_service.runtime.probe import RayLostError
from preshard.schemas import VERSION
from preshard.schemas.errors import ConfigError, PlanError, PreshardError
from preshard.schemas.files.filesystem import FileRefusedError
from preshard.schemas.files.printed import without_secrets
from preshard.waiting import with_home


class Commands(click.Group):
    """Lists commands in the order in which a user needs them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="preshard")
def cli() -> None:
    """Pack video, image and text documents into shards from which a context-parallel rank reads only its own part."""


@click.command("demo-source")
@click.argument("directory", type=click.Path(path_type=Path))
def demo_source(directory: Path) -> None:
    """Write a small source of real media to DIRECTORY. Installed packages carry its videos, photographs and text."""
    with shown_progress("reading the media of installed packages") as progress:
        from preshard.packer_service.demo.source import write_demo_source

        def log(message: str) -> None:
            progress.doing(message)
            click.echo(message, err=True)

        counts = write_demo_source(directory, log=log)
    say(f"{directory}: " + ", ".join(f"{number} {what}" for what, number in counts.items()))


@click.command("demo-model")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@click.option(
    "--family", type=click.Choice(FAMILIES), default=FAMILIES[1], show_default=True, help="The kind of model."
)
def demo_model(directory: Path, family: str) -> None:
    """Write a tiny model without weights to DIR. It has Qwen's vocabulary."""
    with shown_progress("reading the vocabulary"):
        from preshard.packer_service.demo.model import write_model_folder

        write_model_folder(directory, family)
    say(f"{directory}: a tiny model of the family {family}; pack for it with --model {directory}")


for _command in (
    *(demo_source, demo_model, suggest, show, pack, plan, verify, report, advise),
    *(serve, annotate, energon, card),
):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``preshard``.

    Exit status: 0 done; 1 failed; 2 bad usage or configuration; 3 packed, but more rows were rejected than
    ``--max-rejects`` allows, or rows that nobody can count; 130 stopped by SIGINT (Ctrl-C), 143 by SIGTERM.
    """
    code, failed = None, None
    try:
        with interruptible():
            code = cli.main(args=with_home(arguments), prog_name="preshard", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        code = 2
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        command = "preshard" if context is None else context.command_path
        failed = 2, f"{error.format_message()} ({command} --help says more)"
    except Interrupted as stop:
        failed = stop.exit_status, INTERRUPTED
    except (ConfigError, PlanError, FileRefusedError) as error:
        failed = 2, str(error)
    except RayLostError as error:
        exit_at_once(without_secrets(str(error)))
    except (PreshardError, OSError) as error:
        failed = 1, str(error)
    if failed is not None:
        # not where an error is handled, which would keep its frames to the end: DuckDB would say there what they hold
        gc.collect()
        _fail(*failed)
    sys.exit(code if isinstance(code, int) else 0)


def _fail(status: int, message: str) -> None:
    line = " ".join(message.split())
    if is_waited_for():
        exit_at_once(without_secrets(line), status)
    say(f"preshard: {line}", err=True)
    sys.exit(status)
