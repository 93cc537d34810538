"""A run's lines on the terminal, and its figures for whoever writes them."""

from __future__ import annotations

import click

from preshard.schemas.files.printed import several
from preshard.schemas.files.secrets import shown
from preshard.trainer.core.metrics import MetricsFile, StepFigures, Writer
from preshard.trainer.core.processes import Processes
from preshard.trainer.core.setup import Job
from preshard.trainer.extras import load_extra


class Reporter:
    """Takes the figures of each step: rank 0 prints some of them, and writes all.

    Args:
        job: the run, of which it says the first line.
        here: this process.
    """

    def __init__(self, job: Job, here: Processes) -> None:
        self._job, self._speaks = job, here.rank == 0
        self._last: StepFigures | None = None
        self._writers: list[Writer] = []
        config, after = job.config, job.start.step
        for name, fault in job.damaged.items():
            self._say(f"the checkpoint {name} is damaged, and passed over ({fault})")
        self._say(describe_start(job, here.world_size))
        if self._speaks and config.metrics is not None:
            self._writers.append(MetricsFile(config.metrics, after=after))
        if self._speaks and config.report_to:
            self._writers += load_extra("trackers").open_trackers(config, after=after)

    def __call__(self, figures: StepFigures) -> None:
        config, self._last = self._job.config, figures
        for writer in self._writers:
            writer.write(figures)
        is_due = figures.step % config.log_every == 0 or figures.step in (1, config.steps)
        if self._speaks and (is_due or figures.eval_loss is not None):
            click.echo(describe_step(figures))

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *error: object) -> None:
        for writer in self._writers:
            writer.close()

    def status(self, done: int) -> int:
        """Exit status of a run that ended after a step: 0, or 1 if a signal cut it short, which is said."""
        config = self._job.config
        if done < config.steps:
            kept = "without --checkpoint nothing is kept" if config.checkpoint is None else "give --resume to continue"
            self._say(f"stopped by a signal after step {done}; {kept}")
            return 1
        if self._last is not None and self._last.eval_stopped:
            self._say(f"stopped by a signal in the evaluation after step {done}, the last one")
            return 1
        return 0

    def _say(self, line: str) -> None:
        if self._speaks:
            click.echo(shown(f"trainer: {line}"), err=True)


def describe_start(job: Job, world_size: int) -> str:
    """The line that a run begins with."""
    config = job.config
    each = "each " if job.dataset.dp_size > 1 else ""
    shared = f", {each}shared by {several(config.cp_size, 'process')}" if config.cp_size > 1 else ""
    ranks = f"{several(world_size, 'process')}, {several(job.dataset.dp_size, 'pack')} at a time{shared}"
    fused = ", compiled" if config.compile else ""
    taken = f"{config.dtype}{fused}, recompute {config.recompute}, lr {config.largest_lr:g}"
    if job.trains is not None:
        every = job.trains.trained + job.trains.frozen
        taken += f"; trains {job.trains.trained:,} of {several(every, 'number')}"
    if job.memory is not None:
        taken += f"; {job.memory.in_short()}"
    if job.checkpoint is not None:
        return f"{ranks}; continuing after step {job.start.step} from {job.checkpoint}; {taken}"
    empty = f" (no checkpoint in {config.checkpoint})" * config.resume
    return f"{ranks}; starting at step 1{empty}; {taken}"


def describe_step(figures: StepFigures) -> str:
    """The line of a step."""
    if figures.loss is None:
        return f"step {figures.step:6d}  no token of the packs {figures.packs} carries loss: nothing to learn"
    parts = [
        f"step {figures.step:6d}  loss {figures.loss:8.4f}  grad norm {figures.grad_norm:9.4f}",
        f"{figures.step_time:6.2f} s, data {figures.data_time:.2f} s",
        f"{figures.tokens_per_second:,.0f} tokens/s",
    ]
    if figures.rewards is not None:
        parts.append(f"margin {figures.rewards['margins']:.4f}, accuracy {figures.rewards['accuracies']:.0%}")
    if figures.eval_loss is not None:
        parts.append(f"eval loss {figures.eval_loss:.4f}")
    return "  ".join(parts)
