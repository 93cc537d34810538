"""Options that several commands take, and how their values are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from preshard.packer_service.runtime.executors import Executor
from preshard.packer_service.runtime.local import EXECUTORS, choose_executor
from preshard.packer_service.runtime.progress import ConsoleProgress
from preshard.schemas.errors import ConfigError
from preshard.schemas.files.printed import shown, without_secrets
from preshard.schemas.model.devices import DEVICES

if TYPE_CHECKING:
    from preshard.packer_service.ingest.media.reach import AllowedMedia
    from preshard.packer_service.report.records import PlanReport
    from preshard.schemas.config import PackConfig


@dataclass(frozen=True, kw_only=True)
class SourceOptions:
    """A command's options about its sources and its configuration."""

    config_file: Path | None
    settings: tuple[str, ...]
    model: str | None
    form: str | None
    where: str | None
    ignore: tuple[str, ...]
    media_root: tuple[str, ...]
    allow_media: tuple[str, ...]

    def config(self, sources: Sequence[str] = (), *more: str) -> PackConfig:
        """The configuration; of keys that are left out, that of the packed datasets among these sources.

        Args:
            sources: of the job.
            more: settings of other options.
        """
        from preshard.packer_service.config import load_config

        # The options that are keys as well. YAML reads JSON.
        given = {"model": self.model, "form": self.form, "where": self.where, "ignore": self.ignore or None}
        own = [f"{name}={json.dumps(value)}" for name, value in given.items() if value is not None]
        return load_config(self.config_file, [*self.settings, *own, *more], sources)

    def media(self, sources: Sequence[str]) -> AllowedMedia:
        """The media that rows may reach."""
        from preshard.packer_service.ingest.media.reach import AllowedMedia

        return AllowedMedia.of(sources, self.media_root, self.allow_media)


def source_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options for sources, for reading them, and for the configuration: the command gets them as ``asked``."""

    @wraps(command)
    def asking(**given: Any) -> Any:
        own = {name: given.pop(name) for name in SourceOptions.__dataclass_fields__}
        return command(asked=SourceOptions(**own), **given)

    text, path = "Set one configuration value, such as seq_len=8192; repeatable.", click.Path(path_type=Path)
    options = click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help=text)(asking)
    options = click.option("--config", "config_file", type=path, help="Configuration file in YAML.")(options)
    text = "Model folder that decides tokens, images and positions, or a model's name on the Hub that is in its cache."
    options = click.option("--model", metavar="DIR", help=text)(options)
    text = "Form of the rows instead of the one that their columns show: its name, or package.module:function."
    options = click.option("--form", metavar="FORM", help=text)(options)
    text = "Take only rows for which a DuckDB expression over their columns is true, such as 'quality > 0.5'."
    options = click.option("--where", metavar="EXPRESSION", help=text)(options)
    text = "A path or URI that rows may reach besides the folders of SOURCE; repeatable."
    options = click.option("--allow-media", multiple=True, metavar="PREFIX", help=text)(options)
    text = "Folder in which relative media paths are looked for before the folder of the row's file; repeatable."
    options = click.option("--media-root", multiple=True, metavar="[SOURCE=]FOLDER", help=text)(options)
    text = "Leave out files in folders whose name matches, such as '*.bak'; repeatable."
    return click.option("--ignore", multiple=True, metavar="PATTERN", help=text)(options)


@contextmanager
def shown_progress(what: str) -> Iterator[ConsoleProgress]:
    """Progress of a command, from before it imports what takes seconds.

    Args:
        what: what it does first.
    """
    with closing(ConsoleProgress(what)) as progress:
        yield progress


def hear_loops(progress: ConsoleProgress) -> AbstractContextManager[None]:
    """Progress also says when loops are compiled, which nothing else would for half a minute."""
    from preshard.packer_service.numerics import hear_of_compiling

    return hear_of_compiling(progress.begin_compiling, progress.end_compiling)


def executor_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options for where tasks run: the command gets ``run_tasks``, which opens the executor."""

    @wraps(command)
    def running(
        executor: str,
        ray_address: str | None,
        num_cpus: int | None,
        wait_for_workers: float | None,
        skip_bad_nodes: bool,
        **given: Any,
    ) -> Any:
        @contextmanager
        def run_tasks(progress: ConsoleProgress) -> Iterator[Executor]:
            with (
                hear_loops(progress),
                choose_executor(
                    executor,
                    ray_address,
                    num_cpus,
                    progress,
                    wait_minutes=wait_for_workers,
                    skip_bad_nodes=skip_bad_nodes,
                ) as tasks,
            ):
                yield tasks

        return command(run_tasks=run_tasks, **given)

    text = "Leave out nodes of Ray that differ from this machine, instead of ending."
    options = click.option("--skip-bad-nodes", is_flag=True, help=text)(running)
    text, minutes = "Minutes to wait for Ray to start a task; 30 by default.", click.FloatRange(min=0)
    options = click.option("--wait-for-workers", type=minutes, metavar="MINUTES", help=text)(options)
    text = "CPUs of this machine to use; all by default."
    options = click.option("--num-cpus", type=click.IntRange(min=1), help=text)(options)
    text = "Run tasks on Ray: the address of a cluster, `auto` for that of this machine, `local` for a new one."
    options = click.option("--ray-address", metavar="ADDR", help=text)(options)
    text = "`local` runs tasks on this machine without Ray; `auto` does so unless an address of Ray is given."
    kinds = click.Choice(EXECUTORS)
    return click.option("--executor", type=kinds, default="auto", show_default=True, help=text)(options)


def device_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The devices that will train, and what is assumed of them."""
    text = "Replace an assumption about the GPUs or the run, such as link_efficiency=0.5; repeatable."
    command = click.option("--assume", "assumed", multiple=True, metavar="KEY=VALUE", help=text)(command)
    text, kinds = "Kind of GPU, whose speed, links and memory the estimates assume.", click.Choice(list(DEVICES))
    command = click.option("--gpu", type=kinds, default="h100", show_default=True, help=text)(command)
    text = "GPUs that train together."
    return click.option("--gpus", required=True, type=click.IntRange(min=1), help=text)(command)


def make_devices(assumed: tuple[str, ...], **given: Any) -> dict[str, Any]:
    """Values of the options of :func:`device_options`, by their names in a question.

    Raises:
        ConfigError: an assumption is not ``KEY=VALUE``, or has an option of its own.
    """
    values = dict[str, Any]()
    for entry in assumed:
        name, _, value = map(str.strip, entry.partition("="))
        if not (name and value):
            raise ConfigError(f"--assume {entry!r}: write key=value, such as peak_tflops=700")
        values[name] = value
    for name in ("gpus", "gpu", "limit"):
        if name in values:
            raise ConfigError(f"--assume {name}={values[name]}: give --{name} {values[name]} instead")
    return {**values, **given}


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")


def say(text: str, err: bool = False) -> None:
    """Prints text without the secrets of the URIs in it, and without what a terminal obeys, in lines that end."""
    click.echo(shown(text), err=err)


def say_model(answer: Any) -> None:
    """Prints a model as one JSON object."""
    say_json(answer.model_dump(mode="json"))


def say_json(answer: Any) -> None:
    """Prints one JSON object, however long; JSON spells out what a terminal obeys."""
    click.echo(without_secrets(json.dumps(answer)))


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


dp_option = click.option(
    "--dp",
    "dp_sizes",
    type=SizeList(),
    default=(),
    help="Data-parallel sizes to report the straggler ratio for, such as 8,16,32; each must divide order.window.",
)


def print_figures(report: PlanReport, as_json: bool, rejects_file: str | None = None) -> None:
    """Prints the figures, as one JSON object or as tables for a person."""
    from preshard.packer_service.report.console import print_report

    if as_json:
        say_model(report)
    else:
        print_report(report, rejects_file=without_secrets(rejects_file) if rejects_file is not None else None)
