"""The run itself: from its first step to the last, with checkpoints in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import nn

from trainer.config import DTYPES
from trainer.data.batch import RankBatch
from trainer.data.loader import make_loader
from trainer.distributed.checkpoint import load_checkpoint, save_checkpoint
from trainer.distributed.mesh import Mesh
from trainer.distributed.sharding import shard_model
from trainer.metrics import StepFigures
from trainer.models import PackedModel
from trainer.models.export import export_model
from trainer.models.load import load_sharded
from trainer.models.memory import save_memory
from trainer.optimizer import learning_rate, make_optimizer
from trainer.setup import Job
from trainer.step import LocalTotals, Totals, apply_gradients, join_totals, take


def run(
    job: Job,
    mesh: Mesh,
    device: torch.device,
    report: Callable[[StepFigures], None],
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Trains from where the job starts to its last step. All ranks call this.

    Args:
        job: what to do; the same on every rank, except for the part of the dataset.
        mesh: of all ranks, with the job's degrees.
        device: where to compute.
        report: called with each step's figures, which are the same on every rank except for ``step_time``.
        stop: whether this rank was asked to stop. If one was, all stop after the current step and save a checkpoint.

    Returns:
        The last step done.

    Raises:
        DivergedError: the gradient is infinite or NaN.
        FormatError: a sample's bytes break the format.
    """
    config = job.config
    model = build_model(job, mesh, device)
    parameters = list(model.parameters())
    optimizer = make_optimizer(model, config)
    if job.checkpoint is not None:
        load_checkpoint(job.checkpoint, model, optimizer)
    batches = whole_steps(iter(make_loader(job.dataset, workers=config.workers, device=device)), job)
    for step in range(job.start.step + 1, config.steps + 1):
        began, local = time.perf_counter(), LocalTotals.zero(device)
        for _ in range(config.accumulate):
            batch = take(batches, local)
            local.add(*_backward(job, mesh, model, batch, device))
        totals = join_totals(local, parameters, replica=mesh.replica, cp_size=mesh.cp.cp_size, stop=stop())
        lr = learning_rate(step, config)
        apply_gradients(optimizer, parameters, totals, lr=lr, clip=config.clip)
        seconds = time.perf_counter() - began
        report(_figures(totals, step=step, step_time=seconds, lr=lr, epoch=batch.state["epoch"]))
        ends = step == config.steps or totals.stop
        if config.checkpoint is not None and (ends or step % (config.save_every or config.steps) == 0):
            state = replace(job.start, step=step, data=batch.state)
            save_checkpoint(config.checkpoint, model, optimizer, state, keep=config.keep)
        if ends:
            return _finish(job, model, step)
    return _finish(job, model, job.start.step)


def _finish(job: Job, model: PackedModel, step: int) -> int:
    """Writes the model if this step was the last; returns the step."""
    config = job.config
    if config.export is not None and step >= config.steps:
        export_model(model.model, config.model, config.export)
    return step


def build_model(job: Job, mesh: Mesh, device: torch.device) -> PackedModel:
    """The job's model, sharded over the ranks of a replica, of which none holds the whole. All ranks call this.

    Before a checkpoint is loaded its parameters hold anything.
    """
    config = job.config

    def shard(model: nn.Module) -> PackedModel:
        save_memory(model, recompute="full" if config.recompute else "none", device_type=device.type)
        packed = PackedModel(model)
        shard_model(packed, packed.blocks, mesh.parameters, bfloat16=config.dtype == "bfloat16")
        return packed

    return load_sharded(
        config.model,
        shard,
        dtype=_parameter_dtype(config.dtype),
        weights="none" if job.checkpoint is not None else "random" if config.from_scratch else "folder",
        seed=config.seed,
        device=device,
    )


def _figures(totals: Totals, *, step: int, step_time: float, lr: float, epoch: int) -> StepFigures:
    has_loss = totals.loss_weight > 0
    return StepFigures(
        step=step,
        loss=totals.loss_sum / totals.loss_weight if has_loss else None,
        grad_norm=totals.grad_norm / totals.loss_weight if has_loss else None,
        tokens=totals.tokens,
        loss_weight=totals.loss_weight,
        step_time=step_time,
        data_time=totals.data_time,
        bytes_read=totals.bytes_read,
        lr=lr,
        epoch=epoch,
        packs=totals.packs,
    )


def _parameter_dtype(name: str) -> torch.dtype:
    """With bfloat16, parameters stay in float32: AdamW's updates are too small for bfloat16 to represent."""
    return torch.float32 if name == "bfloat16" else DTYPES[name]


def _backward(
    job: Job, mesh: Mesh, model: PackedModel, batch: RankBatch, device: torch.device
) -> tuple[RankBatch, torch.Tensor]:
    """Adds the gradients of one pack's loss sum to the parameters; returns the batch on the device, and the sum."""
    config, batch = job.config, batch.to(device, non_blocking=True)
    loss_sum = model(
        batch,
        mesh.cp,
        attention=config.attention,
        features=config.features,
        exchange=config.exchange,
        overlap=config.ulysses_overlap,
    )
    loss_sum.backward()
    return batch, loss_sum


def whole_steps(batches: Iterator[RankBatch], job: Job) -> Iterator[RankBatch]:
    """The batches, without those at the end of an epoch that do not fill a step of all ranks and micro-batches.

    So steps take the same packs however ``dp_size`` and ``accumulate`` share them, in later epochs too. How many are
    left out follows from the position alone, which is the same on all ranks.
    """
    position, n_packs = job.start.data["position"], job.dataset.n_packs
    while True:
        left = n_packs - position
        for _ in range(left // job.packs_per_step * job.config.accumulate):
            yield next(batches)
        for _ in range(left % job.packs_per_step // job.dataset.dp_size):
            next(batches)
        position = 0
