"""The commands that take a dataset, from ``verify`` to ``card``."""

from __future__ import annotations

import sys

import click

from preshard.packer_service.cli.options import (
    device_options,
    dp_option,
    json_option,
    make_devices,
    print_figures,
    say,
    say_json,
    say_model,
    shown_progress,
)
from preshard.schemas.errors import ConfigError
from preshard.schemas.files.filesystem import join, split_query
from preshard.schemas.files.printed import several

READING = "reading the dataset"
"""Words for what comes before the first figure."""


@click.command()
@click.argument("dataset")
@json_option
@click.option("--thorough", is_flag=True, help="Check every pack, not a sample, independently of the code that packs.")
@click.option(
    "--num-cpus", type=click.IntRange(min=1), help="Processes that read shards in parallel; all CPUs by default."
)
def verify(dataset: str, as_json: bool, thorough: bool, num_cpus: int | None) -> None:
    """Check every rule of the format against the bytes of DATASET. Exit status 0 if it is sound, 1 if not."""
    with shown_progress(READING) as progress:
        from preshard.packer_service.verify import verify_dataset

        verdict = verify_dataset(dataset, thorough=thorough, processes=num_cpus, progress=progress)
    if as_json:
        say_json(verdict.as_json())
    else:
        say("\n".join(verdict.as_lines()))
    if verdict.broken:
        raise SystemExit(1)


@click.command()
@click.argument("dataset")
@json_option
@click.option(
    "--against", metavar="OTHER", help="Compare with another dataset, or with a file of `preshard plan --json`."
)
@dp_option
@click.option("--loss", is_flag=True, help="Count tokens under loss too, in up to 512 packs, which are read for it.")
def report(dataset: str, as_json: bool, against: str | None, dp_sizes: tuple[int, ...], loss: bool) -> None:
    """Show how full and how balanced DATASET is, and what was lost."""
    if against is not None:
        if loss:
            raise ConfigError("report: --loss has no effect beside --against; leave it out")
        _compare(dataset, against, as_json, dp_sizes)
        return
    with shown_progress(READING) as progress:
        from preshard.packer_service.report.dataset import REJECTS_FILE, report_dataset

        found = report_dataset(dataset, dp_sizes)
        if loss:
            from preshard.packer_service.job.preview.loss_tokens import count_loss_tokens

            progress.doing("counting tokens under loss")
            found = found.model_copy(update={"loss_tokens": count_loss_tokens(dataset)})
    print_figures(found, as_json, join(dataset, REJECTS_FILE))


def _compare(first: str, second: str, as_json: bool, dp_sizes: tuple[int, ...]) -> None:
    if dp_sizes:
        raise ConfigError("report: --dp has no effect beside --against; leave it out")
    with shown_progress("reading both datasets"):
        from preshard.packer_service.report.compare import compare_locations
        from preshard.packer_service.report.console import print_comparison

        comparison = compare_locations(first, second)
    if as_json:
        say_model(comparison)
    else:
        print_comparison(comparison)


@click.command()
@click.argument("dataset")
@device_options
@click.option(
    "--model", metavar="DIR", help="Model whose dimensions replace cost.*: a folder, or a cached name of the Hub."
)
@click.option("--limit", type=click.IntRange(min=1), default=10, show_default=True, help="Splits to show at most.")
@json_option
def advise(
    dataset: str, gpus: int, gpu: str, model: str | None, assumed: tuple[str, ...], limit: int, as_json: bool
) -> None:
    """Say how DATASET trains fastest. Gives ring degree, layout and sizes, and what that rests on."""
    with shown_progress(READING):
        from preshard.packer_service.config import model_folder
        from preshard.packer_service.report.advice.console import print_advice
        from preshard.packer_service.report.advice.dataset import advise_dataset
        from preshard.packer_service.report.advice.question import make_question

        question = make_question(make_devices(assumed, gpus=gpus, gpu=gpu, limit=limit))
        advice = advise_dataset(dataset, question, None if model is None else model_folder(model))
    if as_json:
        say_model(advice)
    else:
        print_advice(advice)


@click.command()
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
@click.option("--cache-mib", default=256, show_default=True, type=click.IntRange(0), help="Memory for cached data.")
def serve(root: str, host: str, port: int, tokenizers: tuple[str, ...], cache_mib: int) -> None:
    """Show datasets below ROOT in a browser and over REST. Writes nothing.

    If PRESHARD_TOKEN is set, requests for data must send it as a bearer token.
    """
    # whoever starts it from a program reads the address in the first line
    with shown_progress("starting the service" if sys.stderr.isatty() else ""):
        from preshard.packer_service.http.serve import serve_folder

    serve_folder(root, host, port, tokenizers=tokenizers, cache_bytes=cache_mib << 20)


@click.command()
@click.argument("dataset")
def energon(dataset: str) -> None:
    """Write the files by which Megatron Energon opens DATASET. They go into its folder .nv-meta."""
    with shown_progress(READING):
        from preshard.packer_service.publish.energon import write_energon

        written = write_energon(dataset)
    say(f"{dataset}: wrote {', '.join(written)}")


@click.command()
@click.argument("dataset")
@click.option("--name", metavar="NAME", help="Name of the dataset; by default that of its folder.")
@click.option("--license", "license_name", metavar="ID", help="Its licence as the Hugging Face Hub names it.")
def card(dataset: str, name: str | None, license_name: str | None) -> None:
    """Write a card for the Hugging Face Hub into DATASET. That is README.md and croissant.json."""
    with shown_progress(READING):
        from preshard.packer_service.publish.card import write_card

        named = name or split_query(dataset)[0].rstrip("/").rpartition("/")[2]
        written = write_card(dataset, name=named, license_name=license_name)
    say(f"{dataset}: wrote {', '.join(written)}")


@click.command()
@click.argument("dataset")
@click.argument("table")
@click.option(
    "--on", default="doc_id", show_default=True, metavar="COLUMN", help="Column of TABLE with documents' ids."
)
@click.option(
    "--column", "columns", multiple=True, metavar="NAME", help="A column to join; repeatable. All by default."
)
@click.option("--replace", is_flag=True, help="Replace columns that were joined before.")
def annotate(dataset: str, table: str, on: str, columns: tuple[str, ...], replace: bool) -> None:
    """Join columns of TABLE to DATASET. TABLE (Parquet, CSV, JSON Lines) has a row for each document."""
    with shown_progress("reading the dataset and the table"):
        from preshard.packer_service.publish.annotate import annotate as join_columns

        joined = join_columns(dataset, table, on=on, columns=columns, replace=replace)
    say(f"{dataset}: {', '.join(joined.columns)} of {joined.documents:,} of {several(joined.of_documents, 'document')}")
    if joined.unknown:
        match = "matches" if joined.unknown == 1 else "match"
        say(f"{several(joined.unknown, 'row')} of {table} {match} no packed document")
