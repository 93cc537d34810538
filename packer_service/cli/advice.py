"""The command that says how to split a dataset's packs over GPUs."""

from __future__ import annotations

import json
from pathlib import Path

import click

from preshard.packer_service.cli.options import say
from preshard.packer_service.report.advice.hardware import DEVICES
from preshard.schemas.errors import ConfigError


@click.command()
@click.argument("dataset")
@click.option("--gpus", required=True, type=click.IntRange(min=1), help="GPUs that train together.")
@click.option(
    "--gpu",
    type=click.Choice(list(DEVICES)),
    default="h100",
    show_default=True,
    help="Their kind: peak, links, memory.",
)
@click.option(
    "--model", type=click.Path(path_type=Path), metavar="DIR", help="Model folder whose dimensions replace cost.*."
)
@click.option(
    "--assume", "assumed", multiple=True, metavar="KEY=VALUE", help="Another value for an assumption; repeatable."
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
