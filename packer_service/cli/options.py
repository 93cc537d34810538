"""Options that several commands take, and how their values are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from preshard.packer_service.runtime.local import EXECUTORS
from preshard.schemas.files.secrets import without_secrets

if TYPE_CHECKING:
    from preshard.packer_service.ingest.media.reach import AllowedMedia
    from preshard.packer_service.report.records import PlanReport


def config_options(command: Any) -> Any:
    """The configuration: a file, and values over it."""
    command = click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Sets one configuration value."
    )(command)
    return click.option("--config", "config_file", type=click.Path(path_type=Path), help="Configuration file in YAML.")(
        command
    )


def source_options(command: Any) -> Any:
    """What is read of a source, and as what."""
    text = "Form of the rows instead of the one that their columns show: its name, or package.module:function."
    command = click.option("--form", metavar="FORM", help=text)(command)
    text = "Packs the rows for which a DuckDB expression over their columns is true, such as 'quality > 0.5'."
    command = click.option("--where", metavar="EXPRESSION", help=text)(command)
    text = "A path or URI that rows may reach besides the folders of SOURCE; repeatable."
    command = click.option("--allow-media", multiple=True, metavar="PREFIX", help=text)(command)
    text = "Folder that relative media paths of rows are relative to, instead of the folder of the row's file."
    command = click.option("--media-root", metavar="FOLDER", help=text)(command)
    text = "Leaves out files in folders whose name matches, such as '*.bak'; repeatable."
    return click.option("--ignore", multiple=True, metavar="PATTERN", help=text)(command)


def with_source_options(
    settings: tuple[str, ...], form: str | None, ignore: tuple[str, ...], where: str | None
) -> list[str]:
    """The settings with those of the options that are keys of the configuration as well. YAML reads JSON."""
    own = [f"{name}={json.dumps(value)}" for name, value in (("form", form), ("where", where)) if value is not None]
    return [*settings, *own, *([f"ignore={json.dumps(ignore)}"] if ignore else [])]


def allowed_media(media_root: str | None, allow_media: tuple[str, ...]) -> AllowedMedia:
    """What rows may reach, by the options."""
    from preshard.packer_service.ingest.media.reach import AllowedMedia

    return AllowedMedia(root=media_root, allow=allow_media)


def say(text: str, err: bool = False) -> None:
    """Prints text without the secrets of the URIs in it."""
    click.echo(without_secrets(text), err=err)


def dp_option(command: Any) -> Any:
    """Data-parallel sizes."""
    text = "Data-parallel sizes to report the straggler ratio for, such as 8,16,32; each must divide order.window."
    return click.option("--dp", "dp_sizes", type=SizeList(), default=(), help=text)(command)


class SizeList(click.ParamType):
    """Positive integers separated by commas."""

    name = "N,N,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        parts = str(value).split(",")
        sizes = tuple(int(part) for part in parts if part.strip().isdecimal())
        if len(sizes) < len(parts) or 0 in sizes:
            self.fail(f"{value!r} is not a list of positive integers such as 8,16,32", param, ctx)
        return sizes


def executor_options(command: Any) -> Any:
    """Where tasks run."""
    text = "CPUs to use of this machine; all by default."
    command = click.option("--num-cpus", type=click.IntRange(min=1), help=text)(command)
    text = "Runs tasks on Ray: the address of a cluster, `auto` for the one around, `local` for a new one."
    command = click.option("--ray-address", metavar="ADDR", help=text)(command)
    text = "`local` runs tasks on this machine without Ray; `auto` does so unless an address of Ray is given."
    return click.option("--executor", type=click.Choice(EXECUTORS), default="auto", show_default=True, help=text)(
        command
    )


def print_figures(report: PlanReport, as_json: bool, rejects_file: str | None = None) -> None:
    """Prints the figures, as one JSON object or as tables for a person."""
    from preshard.packer_service.report.console import print_report

    if as_json:
        say(json.dumps(report.model_dump(mode="json")))
    else:
        print_report(report, rejects_file=without_secrets(rejects_file) if rejects_file is not None else None)
