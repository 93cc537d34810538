"""The command line. It turns words into calls, and errors into one line and an exit status."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from packer_service.runtime.interrupt import INTERRUPTED, Interrupted, interruptible
from packer_service.runtime.leave import exit_at_once
from packer_service.runtime.on_use import RayOnUse
from packer_service.runtime.patience import is_waited_for
from packer_service.runtime.probe import RayLostError
from packer_service.runtime.progress import ConsoleProgress
from schemas.errors import ConfigError, PlanError, PreshardError
from schemas.filesystem import join
from schemas.version import VERSION

if TYPE_CHECKING:
    from packer_service.report.figures import PlanReport
    from schemas.manifest import Manifest


class _Commands(click.Group):
    """Lists commands in the order in which a user needs them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="preshard")
def cli() -> None:
    """Pack video, image and text documents into shards from which a context-parallel rank reads only its own part."""


def _config_options(command: Any) -> Any:
    command = click.option(
        "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Sets one configuration value."
    )(command)
    return click.option("--config", "config_file", type=click.Path(path_type=Path), help="Configuration file in YAML.")(
        command
    )


def _source_options(command: Any) -> Any:
    text = "Form of the rows instead of the one that their columns show: its name, or package.module:function."
    command = click.option("--form", metavar="FORM", help=text)(command)
    text = "Leaves out files in folders whose name matches, such as '*.bak'; repeatable."
    return click.option("--ignore", multiple=True, metavar="PATTERN", help=text)(command)


def _with_source_options(settings: tuple[str, ...], form: str | None, ignore: tuple[str, ...]) -> list[str]:
    """The settings with those of the options that are keys of the configuration as well. YAML reads JSON."""
    own = [f"form={json.dumps(form)}"] if form is not None else []
    return [*settings, *own, *([f"ignore={json.dumps(ignore)}"] if ignore else [])]


def _dp_option(command: Any) -> Any:
    text = "Data-parallel sizes to report the straggler ratio for, such as 8,16,32; each must divide order.window."
    return click.option("--dp", "dp_sizes", type=_Sizes(), default=(), help=text)(command)


class _Sizes(click.ParamType):
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


def _ray_options(command: Any) -> Any:
    command = click.option("--num-cpus", type=click.IntRange(min=1), help="CPUs of a local Ray.")(command)
    return click.option("--ray-address", help="`auto`, `local` (the default) or the address of a Ray cluster.")(command)


@cli.command("demo-source")
@click.argument("directory", type=click.Path(path_type=Path))
def demo_source(directory: Path) -> None:
    """Write a small real source to DIRECTORY: videos, photographs and text that installed packages carry."""
    from packer_service.demo.source import write_demo_source

    counts = write_demo_source(directory, log=lambda message: click.echo(message, err=True))
    click.echo(f"{directory}: " + ", ".join(f"{number} {what}" for what, number in counts.items()))


@cli.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--out", required=True, metavar="DATASET", help="Folder of the dataset: a path or a URI.")
@_source_options
@_config_options
@_ray_options
def pack(
    sources: tuple[str, ...],
    out: str,
    form: str | None,
    ignore: tuple[str, ...],
    config_file: Path | None,
    settings: tuple[str, ...],
    ray_address: str | None,
    num_cpus: int | None,
) -> None:
    """Pack SOURCE files, folders and patterns into a dataset. Continues where an earlier run stopped."""
    from packer_service.config import load_config
    from packer_service.job.pack import pack as run_job

    config = load_config(config_file, _with_source_options(settings, form, ignore))
    progress = ConsoleProgress()
    with ExitStack() as stack:
        stack.callback(progress.close)
        executor = RayOnUse(stack, ray_address, num_cpus, progress)
        outcome = run_job(sources, out, config, executor, progress)
    counts = outcome.manifest.counts
    if outcome.already_done:
        click.echo(f"{out}: already packed ({counts.packs} packs, {len(outcome.manifest.shards)} shards); nothing done")
        _say_lost(out, outcome.manifest)
        return
    seconds = ", ".join(f"{name.removesuffix('_seconds')} {value:.1f} s" for name, value in outcome.seconds.items())
    click.echo(
        f"{out}: {counts.documents} documents in {counts.packs} packs and {len(outcome.manifest.shards)} shards, "
        f"{counts.rejected} rejected ({seconds})"
    )
    _say_lost(out, outcome.manifest)


@cli.command()
@click.argument("sources", nargs=-1, metavar="SOURCE...")
@click.option(
    "--lengths", type=click.Path(path_type=Path), help="Parquet file with doc_id, tokens, images; skips measuring."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@_dp_option
@_source_options
@_config_options
@_ray_options
def plan(
    sources: tuple[str, ...],
    form: str | None,
    ignore: tuple[str, ...],
    lengths: Path | None,
    as_json: bool,
    dp_sizes: tuple[int, ...],
    config_file: Path | None,
    settings: tuple[str, ...],
    ray_address: str | None,
    num_cpus: int | None,
) -> None:
    """Measure and plan without writing a dataset: what would packing SOURCE give?"""
    from packer_service.config import load_config
    from packer_service.job.preview import plan_sources
    from packer_service.report.what_if import plan_lengths

    config = load_config(config_file, _with_source_options(settings, form, ignore))
    if bool(sources) == (lengths is not None):
        raise ConfigError("plan: give either SOURCE files and folders or --lengths FILE.parquet")
    if lengths is not None:
        _print_report(plan_lengths(lengths, config, dp_sizes), as_json)
        return
    progress = ConsoleProgress()
    with ExitStack() as stack:
        stack.callback(progress.close)
        executor = RayOnUse(stack, ray_address, num_cpus, progress)
        report = plan_sources(sources, config, executor, progress, dp_sizes)
    _print_report(report, as_json)
    _require_documents("plan", report.documents, report.source_documents)


@cli.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--row", metavar="N", help="The row of this number, from 1 through all files, or FILE:N.")
@click.option("--id", "doc_id", metavar="X", help="The row of this id.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@_source_options
@_config_options
def show(
    sources: tuple[str, ...],
    form: str | None,
    ignore: tuple[str, ...],
    row: str | None,
    doc_id: str | None,
    as_json: bool,
    config_file: Path | None,
    settings: tuple[str, ...],
) -> None:
    """Print one document of SOURCE as it would be packed: what carries loss, images and frames in place."""
    from packer_service.config import load_config
    from packer_service.job.show import show_document
    from packer_service.report.show import print_document

    if row is not None and doc_id is not None:
        raise ConfigError("show: give either --row N or --id X")
    config = load_config(config_file, _with_source_options(settings, form, ignore))
    document = show_document(sources, config, row=row, doc_id=doc_id)
    if as_json:
        click.echo(json.dumps(document.model_dump(mode="json")))
    else:
        print_document(document)


@cli.command()
@click.argument("dataset")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@click.option("--thorough", is_flag=True, help="Check every pack, not a sample, independently of the code that packs.")
@click.option(
    "--num-cpus", type=click.IntRange(min=1), help="Processes that read shards in parallel; all CPUs by default."
)
def verify(dataset: str, as_json: bool, thorough: bool, num_cpus: int | None) -> None:
    """Check every rule of the format against the bytes of DATASET. Exit status 0 if it is sound, 1 if not."""
    from packer_service.verify import verify_dataset

    verdict = verify_dataset(dataset, thorough=thorough, processes=num_cpus, progress=ConsoleProgress())
    if as_json:
        click.echo(json.dumps(verdict.as_json()))
    else:
        click.echo("\n".join(verdict.as_lines()))
    if verdict.broken:
        raise SystemExit(1)


@cli.command()
@click.argument("dataset")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
@_dp_option
def report(dataset: str, as_json: bool, dp_sizes: tuple[int, ...]) -> None:
    """Show how full and how balanced DATASET is, and what was lost and why."""
    from packer_service.report.dataset import REJECTS_FILE, report_dataset

    _print_report(report_dataset(dataset, dp_sizes), as_json, join(dataset, REJECTS_FILE))


@cli.command()
@click.argument("root")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port", default=8000, show_default=True, type=click.IntRange(0, 65535), help="Port; 0 for any free one."
)
@click.option(
    "--tokenizer",
    "tokenizers",
    multiple=True,
    metavar="FILE",
    help="A tokenizer.json that decodes tokens; repeatable.",
)
@click.option("--cache-mib", default=512, show_default=True, type=click.IntRange(0), help="Memory for cached data.")
def serve(root: str, host: str, port: int, tokenizers: tuple[str, ...], cache_mib: int) -> None:
    """Show every dataset below ROOT in a browser and over REST, read-only.

    If PRESHARD_TOKEN is set, requests for data must send it as a bearer token.
    """
    from packer_service.http.serve import serve_folder

    serve_folder(root, host, port, tokenizers=tokenizers, cache_bytes=cache_mib << 20)


def _say_lost(out: str, manifest: Manifest) -> None:
    """What was not read, and why documents were rejected; a job that packed none has failed."""
    from packer_service.report.console import reason_lines, unread_lines
    from packer_service.report.dataset import REJECTS_FILE, dataset_reject_reasons

    counts = manifest.counts
    lines = unread_lines(manifest.unused_columns, manifest.unread_files)
    if counts.rejected:
        lines += reason_lines(dataset_reject_reasons(out), counts.rejected, join(out, REJECTS_FILE))
    for line in lines:
        click.echo(line)
    _require_documents(out, counts.documents, counts.source_documents)


def _require_documents(what: str, documents: int, of: int) -> None:
    """
    Raises:
        PreshardError: there are none.
    """
    if not documents:
        raise PreshardError(
            f"{what}: holds no document: " + (f"all {of} rows were rejected" if of else "no row was found")
        )


def _print_report(report: PlanReport, as_json: bool, rejects_file: str | None = None) -> None:
    from packer_service.report.console import print_report

    if as_json:
        click.echo(json.dumps(report.model_dump(mode="json")))
    else:
        print_report(report, rejects_file=rejects_file)


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of ``preshard``.

    Exit status: 0 done, 1 failed, 2 bad usage or configuration, 130 stopped by SIGINT (Ctrl-C), 143 by SIGTERM.
    """
    try:
        with interruptible():
            code = cli.main(
                args=None if arguments is None else list(arguments), prog_name="preshard", standalone_mode=False
            )
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        sys.exit(2)
    except click.ClickException as error:
        _fail(2, f"{error.format_message()} (preshard --help lists the commands and options)")
    except Interrupted as stop:
        _fail(stop.exit_status, INTERRUPTED)
    except (ConfigError, PlanError) as error:
        _fail(2, str(error))
    except RayLostError as error:
        exit_at_once(str(error))
    except (PreshardError, OSError) as error:
        _fail(1, str(error))
    sys.exit(code if isinstance(code, int) else 0)


def _fail(status: int, message: str) -> None:
    line = " ".join(message.split())
    if is_waited_for():
        exit_at_once(line, status)
    click.echo(f"preshard: {line}", err=True)
    sys.exit(status)
