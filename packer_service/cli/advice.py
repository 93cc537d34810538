"""The commands that say how to split packs over GPUs: those of a dataset, and those that a source would have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from preshard.packer_service.cli.options import allowed_media, config_options, say, source_options, with_source_options
from preshard.packer_service.runtime.progress import ConsoleProgress
from preshard.schemas.errors import ConfigError
from preshard.schemas.model.devices import DEVICES


def _devices(command: Any) -> Any:
    """The devices that will train, and what is assumed of them."""
    text = "Another value for an assumption; repeatable."
    command = click.option("--assume", "assumed", multiple=True, metavar="KEY=VALUE", help=text)(command)
    text, kinds = "Their kind: peak, links, memory.", click.Choice(list(DEVICES))
    command = click.option("--gpu", type=kinds, default="h100", show_default=True, help=text)(command)
    text = "GPUs that train together."
    return click.option("--gpus", required=True, type=click.IntRange(min=1), help=text)(command)


@click.command()
@click.argument("dataset")
@_devices
@click.option(
    "--model", type=click.Path(path_type=Path), metavar="DIR", help="Model folder whose dimensions replace cost.*."
)
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="Most splits to show.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on standard output.")
def advise(
    dataset: str, gpus: int, gpu: str, model: Path | None, assumed: tuple[str, ...], limit: int, as_json: bool
) -> None:
    """Say with which ring degree, layout and sizes DATASET trains fastest, and what that rests on."""
    from preshard.packer_service.report.advice.console import print_advice
    from preshard.packer_service.report.advice.dataset import advise_dataset
    from preshard.packer_service.report.advice.question import make_question

    question = make_question({**_values(assumed), "gpus": gpus, "gpu": gpu, "limit": limit})
    advice = advise_dataset(dataset, question, None if model is None else str(model))
    if as_json:
        say(json.dumps(advice.model_dump(mode="json")))
    else:
        print_advice(advice)


@click.command()
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--model", required=True, metavar="DIR", help="Model folder that decides tokens, images and cost.*.")
@_devices
@click.option(
    "--rows",
    type=click.IntRange(1, 100_000),
    default=256,
    show_default=True,
    help="Most rows that are drawn of SOURCE.",
)
@click.option("--out", type=click.Path(path_type=Path), metavar="FILE", help="Writes the file instead of printing it.")
@source_options
@config_options
def suggest(
    sources: tuple[str, ...], model: str, gpus: int, gpu: str, assumed: tuple[str, ...], rows: int, out: Path | None,
    form: str | None, ignore: tuple[str, ...], where: str | None, media_root: str | None, allow_media: tuple[str, ...],
    config_file: Path | None, settings: tuple[str, ...],
) -> None:  # fmt: skip
    """Propose a configuration file for SOURCE from a sample of its rows, with what each choice would give.

    Keys that --config and --set give stay as they are.
    """
    from preshard.packer_service.config import load_config
    from preshard.packer_service.job.preview.suggest import suggest as suggest_for
    from preshard.packer_service.report.advice.question import make_question

    question = make_question({**_values(assumed), "gpus": gpus, "gpu": gpu})
    words = [*with_source_options(settings, form, ignore, where), f"model={json.dumps(model)}"]
    config = load_config(config_file, words)
    progress = ConsoleProgress()
    try:
        found = suggest_for(
            sources, config, question, progress, rows=rows, media=allowed_media(media_root, allow_media)
        )
    finally:
        progress.close()
    if out is None:
        say(found.removesuffix("\n"))
        return
    try:
        out.write_text(found, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--out {out}: cannot be written ({error.strerror or error})") from None
    say(f"{out}: written; pack with --config {out}")


def _values(assumed: tuple[str, ...]) -> dict[str, str]:
    """
    Raises:
        ConfigError: one is not ``KEY=VALUE``, or has an option of its own.
    """
    pairs = [entry.partition("=") for entry in assumed]
    for entry, (name, equals, value) in zip(assumed, pairs, strict=True):
        if not (name and equals and value):
            raise ConfigError(f"--assume {entry!r}: write key=value, such as peak_tflops=700")
    values = {name.strip(): value.strip() for name, _, value in pairs}
    for name in ("gpus", "gpu", "limit"):
        if name in values:
            raise ConfigError(f"--assume {name}={values[name]}: give --{name} {values[name]} instead")
    return values
