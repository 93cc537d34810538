"""The commands that make something to try the packer on."""

from __future__ import annotations

from pathlib import Path

import click

from preshard.packer_service.demo.model import FAMILIES


@click.command("demo-source")
@click.argument("directory", type=click.Path(path_type=Path))
def demo_source(directory: Path) -> None:
    """Write a small real source to DIRECTORY: videos, photographs and text that installed packages carry."""
    from preshard.packer_service.demo.source import write_demo_source

    counts = write_demo_source(directory, log=lambda message: click.echo(message, err=True))
    click.echo(f"{directory}: " + ", ".join(f"{number} {what}" for what, number in counts.items()))


@click.command("demo-model")
@click.argument("directory", type=click.Path(path_type=Path), metavar="DIR")
@click.option(
    "--family", type=click.Choice(FAMILIES), default=FAMILIES[1], show_default=True, help="The kind of model."
)
def demo_model(directory: Path, family: str) -> None:
    """Write a model folder to DIR: a tiny model with Qwen's vocabulary, without weights."""
    from preshard.packer_service.demo.model import write_model_folder

    write_model_folder(directory, family)
    click.echo(f"{directory}: a tiny model of the family {family}; pack for it with --set model={directory}")
