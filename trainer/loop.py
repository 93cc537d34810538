"""The run itself: steps from where it begins to the last one, with checkpoints on the way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import torch

from trainer.attention import MaskTensors, bind
from trainer.config import DTYPES
from trainer.data.batch import RankBatch
from trainer.data.loader import make_loader
from trainer.distributed.checkpoint import RunState, load_checkpoint, save_checkpoint
from trainer.distributed.mesh import Mesh
from trainer.distributed.sharding import shard_model
from trainer.metrics import StepFigures
from trainer.models.features import bind_features
from trainer.models.model import VisionLanguageModel, build_model
from trainer.optimizer import learning_rate, make_optimizer
from trainer.setup import Job
from trainer.step import Local, apply_gradients, take, totals


def run(
    job: Job,
    mesh: Mesh,
    device: torch.device,
    report: Callable[[StepFigures], None],
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Trains from where the job begins to its last step. All ranks call this.

    Args:
        job: what to do; the same on every rank, but for the part of the dataset.
        mesh: of all ranks, in the job's degrees.
        device: where to compute.
        report: called with each step's figures, the same on every rank but for ``step_time``.
        stop: whether this rank was asked to stop. When one was, all stop after the step, and save a checkpoint.

    Returns:
        The last step done.

    Raises:
        DivergedError: the gradient is no number any more.
        FormatError: a sample's bytes are not what the format says.
    """
    config = job.config
    model = build_model(job.model, seed=config.seed, dtype=_parameter_dtype(config.dtype), recompute=config.recompute)
    shard_model(model, mesh.parameters, bfloat16=config.dtype == "bfloat16")
    parameters = list(model.parameters())
    optimizer = make_optimizer(model, config)
    if job.checkpoint is not None:
        load_checkpoint(job.checkpoint, model, optimizer)
    batches = whole_steps(iter(make_loader(job.dataset, workers=config.workers, device=device)), job)
    for step in range(job.start.step + 1, config.steps + 1):
        began, local = time.perf_counter(), Local.nothing(device)
        for _ in range(config.accumulate):
            batch = take(batches, local)
            local.add(*_backward(job, mesh, model, batch, device))
        of = totals(local, parameters, shard_size=mesh.parameters.size(1), cp_size=mesh.cp.cp_size, stop=stop())
        lr = learning_rate(step, config)
        apply_gradients(optimizer, parameters, of, lr=lr, clip=config.clip)
        learnt = of.loss_weight > 0
        report(
            StepFigures(
                step=step,
                loss=of.loss_sum / of.loss_weight if learnt else None,
                grad_norm=of.grad_norm / of.loss_weight if learnt else None,
                tokens=of.tokens,
                loss_weight=of.loss_weight,
                step_time=time.perf_counter() - began,
                data_time=of.data_time,
                bytes_read=of.bytes_read,
                lr=lr,
                epoch=batch.state["epoch"],
                packs=of.packs,
            )
        )
        ends = step == config.steps or of.stop
        if config.checkpoint is not None and (ends or step % (config.save_every or config.steps) == 0):
            state = RunState(
                step=step,
                data=batch.state,
                dataset_id=job.start.dataset_id,
                seed=job.start.seed,
                model=job.start.model,
            )
            save_checkpoint(config.checkpoint, model, optimizer, state, keep=config.keep)
        if ends:
            return step
    return job.start.step


def _parameter_dtype(name: str) -> torch.dtype:
    """With bfloat16 parameters stay in float32: steps of AdamW are smaller than what bfloat16 can tell apart."""
    return torch.float32 if name == "bfloat16" else DTYPES[name]


def _backward(
    job: Job, mesh: Mesh, model: VisionLanguageModel, batch: RankBatch, device: torch.device
) -> tuple[RankBatch, torch.Tensor]:
    """Adds the gradients of one pack's loss sum to the parameters'; the batch on the device, and the sum."""
    mask = MaskTensors.of(batch).to(device)
    attend = bind(job.config.attention, batch.layout, mask, mesh.cp)
    batch = batch.to(device, non_blocking=True)
    loss_sum = model(batch, attend, bind_features(batch, mesh.cp, job.config.features))
    loss_sum.backward()
    return batch, loss_sum


def whole_steps(batches: Iterator[RankBatch], job: Job) -> Iterator[RankBatch]:
    """The batches without those at the end of an epoch that do not fill a step of all ranks and micro-batches.

    So steps take the same packs however ``dp_size`` and ``accumulate`` share them, in later epochs too. How many are
    left out follows from the position alone, which all ranks have in common.
    """
    position, n_packs = job.start.data["position"], job.dataset.n_packs
    while True:
        left = n_packs - position
        for _ in range(left // job.packs_per_step * job.config.accumulate):
            yield next(batches)
        for _ in range(left % job.packs_per_step // job.dataset.dp_size):
            next(batches)
        position = 0
