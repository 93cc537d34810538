"""Figures of a run's steps, as JSON Lines and as printed lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

import click

from preshard.schemas.files.printed import several, shown
from preshard.trainer.core.processes import Processes
from preshard.trainer.core.setup import Job
from preshard.trainer.core.step import Totals
from preshard.trainer.extras import load_extra


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFigures:
    """One optimiser step over all ranks. Except for the times, nothing depends on how many ranks share the work.

    Attributes:
        step: number of the step, from 1.
        loss: sum of weight x cross entropy over all tokens by the sum of weights. None if no token has a weight.
        grad_norm: norm of the gradient of ``loss``, before clipping. None if ``loss`` is.
        tokens: tokens without padding.
        loss_weight: sum of the loss weights.
        step_time: seconds that the step took on this rank.
        data_time: seconds of it that the slowest rank waited for its packs.
        bytes_read: bytes that all ranks together asked from shards.
        cached_bytes: bytes of these that came from the nodes' caches.
        retries: requests to a store that followed others which failed or were slow.
        lr: learning rate.
        epoch: epoch of the packs, from 0.
        packs: ids of the packs, in the order of the epoch.
        tokens_per_second: ``tokens`` by ``step_time``.
        tflops: work of the step in 10^12 operations per second and process (see :mod:`preshard.trainer.extra.work`).
        predicted_work: of each rank, in 10^12 operations.
        compute_times: processor seconds of each rank's forward and backward passes. Empty on CUDA, where
            waiting for other ranks counts as computing: a profile shows it.
        predicted_imbalance: the largest of ``predicted_work`` by their mean. None if there is no work.
        measured_imbalance: the same of ``compute_times``.
        eval_loss: mean loss on the second dataset, in steps after which it is taken.
        rewards: means of the further sums of the loss, such as those of ``--loss dpo``, by their names.
        eval_rewards: the same on the second dataset, in steps after which it is taken.
        eval_stopped: whether a signal cut that short. Files have no such figure.
    """

    step: int
    loss: float | None
    grad_norm: float | None
    tokens: int
    loss_weight: float
    step_time: float
    data_time: float
    bytes_read: int
    cached_bytes: int
    retries: int
    lr: float
    epoch: int
    packs: list[int]
    tokens_per_second: float
    tflops: float
    predicted_work: list[float]
    compute_times: list[float]
    predicted_imbalance: float | None
    measured_imbalance: float | None
    eval_loss: float | None = None
    rewards: dict[str, float] | None = None
    eval_rewards: dict[str, float] | None = None
    eval_stopped: bool = False

    def named(self) -> dict[str, Any]:
        """The figures by the names that files have for them: rewards are TRL's ``rewards/chosen`` and so on."""
        found = asdict(self)
        del found["eval_stopped"]
        for kind in ("rewards", "eval_rewards"):
            found |= {f"{kind}/{name}": value for name, value in (found.pop(kind) or {}).items()}
        return found


def step_figures(
    totals: Totals, names: Sequence[str] = (), *, step: int, seconds: float, lr: float, epoch: int
) -> StepFigures:
    """The figures of a step.

    Args:
        totals: over all ranks.
        names: of the further sums of the loss.
        step: from 1.
        seconds: that it took on this rank.
        lr: learning rate.
        epoch: from 0.
    """
    has_loss = totals.loss_weight > 0
    return StepFigures(
        step=step,
        loss=totals.loss_sum / totals.loss_weight if has_loss else None,
        grad_norm=totals.grad_norm / totals.loss_weight if has_loss else None,
        tokens=totals.tokens,
        loss_weight=totals.loss_weight,
        step_time=seconds,
        data_time=totals.data_time,
        bytes_read=totals.bytes_read,
        cached_bytes=totals.cached_bytes,
        retries=totals.retries,
        lr=lr,
        epoch=epoch,
        packs=totals.packs,
        tokens_per_second=totals.tokens / seconds,
        tflops=sum(totals.work) / seconds / len(totals.work) / 1e12,
        predicted_work=[work / 1e12 for work in totals.work],
        compute_times=totals.compute_times,
        predicted_imbalance=imbalance(totals.work),
        measured_imbalance=imbalance(totals.compute_times) if totals.compute_times else None,
        rewards=mean_rewards(names, totals.rewards, totals.loss_weight),
    )


def mean_rewards(names: Sequence[str], sums: Sequence[float], weight: float) -> dict[str, float] | None:
    """Further sums of a loss of a total weight as means, by their names; None without a sum or a weight."""
    return {name: total / weight for name, total in zip(names, sums, strict=True)} if names and weight else None


class Writer(Protocol):
    """Receiver of the figures of each step."""

    def write(self, figures: StepFigures) -> None: ...
    def close(self) -> None: ...


class MetricsFile:
    """A file of JSON Lines with one line per step, however often the run was stopped and resumed.

    Args:
        path: the file. Its folder is created if missing.
        after: the step after which the run continues. Lines up to it are kept; later ones belong to steps that will be
            done again. With 0 the file starts empty.
    """

    def __init__(self, path: Path, *, after: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # a killed process can leave half of a line
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if after and path.exists() else []
        kept = [line for line in lines if json.loads(line)["step"] <= after]
        whole = path.with_name(f"{path.name}.tmp")
        whole.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        whole.replace(path)
        self._path = path
        self._file: TextIO = path.open("a", encoding="utf-8")

    def write(self, figures: StepFigures) -> None:
        """Appends a step. It is in the file when this returns, even if the process is killed next.

        Raises:
            OSError: it cannot be written; names the file.
        """
        try:
            self._file.write(json.dumps(figures.named()) + "\n")
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None

    def close(self) -> None:
        self._file.close()


def imbalance(of_ranks: list[float]) -> float | None:
    """The largest share over the mean one; None if there is no work."""
    mean = sum(of_ranks) / len(of_ranks)
    return max(of_ranks) / mean if mean > 0 else None


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
        load_extra("waiting").doing("loading the model, and making the first step")
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
        load_extra("waiting").doing("training" if figures.step < config.steps else "saving")

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
        last = ", the last one," if job.start.step == config.steps else ""
        return f"{ranks}; continuing after step {job.start.step}{last} from {job.checkpoint}; {taken}"
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
