"""The command around the recipe: options in, problems of any rank found before the first step, one line for each."""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, TypeVar, get_args, get_origin

from pydantic.fields import FieldInfo

from preshard.extras import needed
from preshard.schemas.errors import ConfigError, PreshardError

with needed("trainer", "training", "train"):
    import click

    from preshard.trainer.core.config import TrainConfig, make_config, option

import torch.distributed as dist

from preshard.schemas.files.printed import shown
from preshard.trainer.core.processes import Processes, first_difference, first_problem, joined, start_processes
from preshard.trainer.core.setup import Job, prepare
from preshard.trainer.extras import load_extra

T = TypeVar("T")


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def cli(**given: Any) -> TrainConfig:
    """Train a Hugging Face model on a packed dataset. Each rank reads only its own part of each pack."""
    return make_config({name: value for name, value in given.items() if value is not None})


def _as_option(name: str, field: FieldInfo) -> click.Option:
    """A field as an option. Its range is checked later, with the whole configuration."""
    kind, default = field.annotation, field.get_default()
    choices = get_args(kind) if all(isinstance(choice, str) for choice in get_args(kind)) else ()
    number = next((each for each in (kind, *get_args(kind)) if each in (int, float)), str)
    if kind is bool:
        return click.Option([option(name)], is_flag=True, help=field.description)
    if bool in get_args(kind):  # neither, if not given
        return click.Option([f"{option(name)}/--no-{name}"], default=None, help=field.description)
    return click.Option(
        [option(name)],
        type=click.Choice(choices) if choices else number,
        multiple=get_origin(kind) is tuple,
        required=field.is_required(),
        default=None if field.is_required() else default,
        help=field.description,
    )


cli.params.extend(_as_option(name, field) for name, field in TrainConfig.model_fields.items())


PASSED_ON_SECONDS = 5.0
"""Seconds after a signal in which the same one may be its copy: a terminal and Slurm give it to all processes of a job,
and torchrun, which is one of them, passes it on to its ranks."""


class StopRequest:
    """Request to stop, by a signal. The loop checks it between steps, and between packs of an evaluation.

    Only a second Ctrl-C ends the process where it is: whoever sends SIGTERM sends SIGKILL when it has waited enough.
    """

    def __init__(self) -> None:
        self.given: float | None = None
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._note)

    def _note(self, number: int, frame: object) -> None:  # noqa: ARG002
        now = time.monotonic()
        if self.given is None:
            self.given = now
        elif number == signal.SIGINT and now - self.given > PASSED_ON_SECONDS:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)

    def __call__(self) -> bool:
        return self.given is not None


def start(arguments: Sequence[str] | None = None) -> tuple[Job, Processes]:
    """Reads the options, meets the other processes and prepares the run. All processes of the job call this.

    Raises:
        SystemExit: status 0: help or a dry run was asked for, and is printed; 2: something does not fit on one of the
            ranks, which rank 0 has said.
    """
    config, problem = _attempt(lambda: _parse(arguments))
    if config is not None and config.dry_run:
        _dry_run(config)
    load_extra("waiting").doing("opening the dataset and the model's configuration")
    here, missing = _attempt(lambda: start_processes(config.device if config is not None else "cpu"))
    # even without the requested device, the ranks must learn of each other's problems
    here = here or joined()
    problem, job = first_problem(problem or missing), None
    if config is not None and problem is None:
        place: Any = {"rank": here.rank, "world_size": here.world_size, "device_type": here.device.type}
        resumes = config.checkpoint is not None and config.resume
        damaged = load_extra("checkpoint_check").find_damaged(config.checkpoint) if resumes else {}
        job, problem = _attempt(lambda: prepare(config, **place, damaged=damaged))
        problem = first_problem(problem)
    if job is not None and problem is None:
        find_unwritable = load_extra("outputs").find_unwritable
        problem = first_difference(job.rank_invariants()) or find_unwritable(job.config, here.rank, job.start.step)
    if job is None or problem is not None:
        if here.rank == 0:
            click.echo(shown(f"trainer: {problem}"), err=True)
        leave(2)
    return job, here


def _dry_run(config: TrainConfig) -> NoReturn:
    """Counts a step of one rank, prints what it found, and ends the process: it needs no other one."""
    lines, problem = _attempt(lambda: load_extra("dry_run.report").report(config))
    if lines is None:
        click.echo(shown(f"trainer: {problem}"), err=True)
        sys.exit(2)
    click.echo("\n".join(lines))
    sys.exit(0)


def _parse(arguments: Sequence[str] | None) -> TrainConfig:
    """The configuration that the command line gives.

    Raises:
        ConfigError: an option is unknown, missing or not legal.
    """
    try:
        config = cli.main(args=arguments, prog_name="python -m preshard.train", standalone_mode=False)
    except click.ClickException as error:
        raise ConfigError(f"{error.format_message()} (--help lists the options)") from None
    if not isinstance(config, TrainConfig):  # --help has been printed
        sys.exit(0)
    return config


def _attempt(what: Callable[[], T]) -> tuple[T | None, str | None]:
    """The result of a call, or the one line that says why it failed."""
    try:
        return what(), None
    except (PreshardError, OSError) as error:
        return None, _one_line(error)


def _one_line(error: Exception) -> str:
    message = str(error).strip()
    if IN_WORKER in message:  # the last line is the error's name and its message
        message = message.rpartition("\n")[2].partition(": ")[2]
    return " ".join(message.split())


LOST = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")
"""Words of gloo for a rank that is gone from an exchange."""

WORKER_GONE = "DataLoader worker (pid"
"""Words of torch's loader for a worker that was killed."""

IN_WORKER = "Original Traceback"
"""Words in an error that a loader's worker has met, between its kind and its own message."""


def end(here: Processes, error: Exception, *, asked: bool = False) -> NoReturn:
    """Says what has ended a run, if no other rank has said it, and ends this process.

    Args:
        here: this process.
        error: what it met.
        asked: whether a signal had asked it to stop; then one may have ended another rank at once, or SIGKILL after it.

    The others are in the middle of a step: they cannot be waited for, and find out when their next exchange with this
    one breaks off. Python's own way to end would wait for threads that write a checkpoint together with them.
    """
    if here.fails_first():
        if (line := _known(error, asked=asked)) is not None:
            click.echo(shown(f"trainer: rank {here.rank}: {line}"), err=True)
        else:
            traceback.print_exception(error)
    sys.stdout.flush()
    sys.stderr.flush()
    here.leave_store()
    os._exit(1)


def _known(error: Exception, *, asked: bool) -> str | None:
    """The line that a user needs of an error; None if it is a mistake of ours, which its traceback shows."""
    if isinstance(error, PreshardError | OSError):
        return _one_line(error)
    is_lost = isinstance(error, RuntimeError) and any(lost in str(error) for lost in LOST)
    if is_lost and asked:
        return ("stopped by a signal; another rank ended before a checkpoint was saved: use --resume to continue from "
                "the last one")  # fmt: skip
    if is_lost:
        return ("another rank died without an error message; if it ran out of memory, the system log says so: "
                "use --resume to continue")  # fmt: skip
    if isinstance(error, RuntimeError) and str(error).startswith(WORKER_GONE):
        return ("a process that reads ahead died without an error message; if it ran out of memory, the system log "
                "says so: use fewer --workers, and --resume to continue")  # fmt: skip
    return None


def leave(status: int) -> NoReturn:
    """Ends the process once all ranks are here, so that torchrun ends none before it has printed its message."""
    dist.barrier()
    dist.destroy_process_group()
    sys.exit(status)
