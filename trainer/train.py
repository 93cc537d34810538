"""The trainer's recipe, from the options to the exported model, read top to bottom: ``preshard.train``.

What makes a step right is in ``core``, and public as ``preshard.training``. What a step does without plugs in by its
name: ``trainer.extras`` has all of them, each with its point.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist

from preshard.schemas.model.savings import state_on_host
from preshard.trainer.attention.listed import TileLister
from preshard.trainer.core.checkpoint import Checkpoints, load_checkpoint
from preshard.trainer.core.command import StopRequest, end, leave, start
from preshard.trainer.core.export import export_model
from preshard.trainer.core.mesh import Mesh
from preshard.trainer.core.metrics import Reporter, StepFigures, mean_rewards, step_figures
from preshard.trainer.core.objective import Objective, deal_packs, evaluating, find_objectives
from preshard.trainer.core.optimizer import learning_rate, make_optimizer
from preshard.trainer.core.processes import StoppedError
from preshard.trainer.core.setup import Job, make_mesh
from preshard.trainer.core.sharding import end_backward_at_decoder, shard_model
from preshard.trainer.core.step import LocalTotals, apply_gradients, join_totals, next_batch, seed_noise
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.loader import make_loader
from preshard.trainer.extras import load_extra
from preshard.trainer.models.interface import feature_parameters, unwrap
from preshard.trainer.models.load import Weights, load_sharded
from preshard.trainer.models.packed import PackedModel


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point. Exit status: 0 done; 1 failed or stopped; 2 something does not fit, found before the first step."""
    job, here = start(arguments)
    stop = StopRequest()
    try:
        mesh = make_mesh(job.config, here.world_size, here.device.type)
        with Reporter(job, here) as report:
            done = run(job, mesh, here.device, report, stop)
        leave(report.status(done))
    except Exception as error:  # whatever it is, the other ranks are in the middle of a step
        end(here, error, asked=stop())


def run(
    job: Job,
    mesh: Mesh,
    device: torch.device,
    report: Callable[[StepFigures], None],
    stop: Callable[[], bool] = lambda: False,
) -> int:
    """Trains from where the job starts to its last step, and returns the last step done. All ranks call this.

    Args:
        job: what to do; the same on every rank, except for the part of the dataset.
        mesh: of all ranks, with the job's degrees.
        device: where to compute.
        report: called with each step's figures, which are the same on every rank except for ``step_time``.
        stop: whether this rank was asked to stop. If one was, all stop after the current step and save a checkpoint;
            an evaluation is cut short for it.

    Raises:
        DivergedError: the gradient is infinite or NaN.
        FormatError: a sample's bytes break the format.
    """
    config, peak = job.config, job.config.largest_lr
    model = build_model(job, mesh, device)
    work = load_extra("work").StepWork.of(unwrap(model.inner))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    of_features = feature_parameters(unwrap(model.inner))
    optimizer = make_optimizer(model, lr=peak, weight_decay=config.weight_decay, own_rates=job.own_rates(model))
    shares = [group["lr"] / peak for group in optimizer.param_groups]
    try:
        objective, of_evaluation = find_objectives(job, mesh, model, stop)
    except StoppedError:
        return job.start.step
    if job.checkpoint is not None:
        load_checkpoint(job.checkpoint, model, optimizer)
    batches = read_batches(job, model, mesh, device)
    kept: Any = {"keep": config.keep, "beside": config.async_save, "damaged": job.damaged}
    saves = None if config.checkpoint is None else Checkpoints(config.checkpoint, **kept)
    step = job.start.step
    with load_extra("profile").profiled(config.profile) as profile_step:
        for step in range(job.start.step + 1, config.steps + 1):
            began = time.perf_counter()
            seed_noise(config.seed, step, dist.get_rank())
            local, data = add_gradients(model, objective, batches, mesh, work, packs=config.accumulate)
            totals = join_totals(local, parameters, replica=mesh.replica, cp_size=mesh.cp.cp_size, stop=stop())
            lr = learning_rate(step, peak=peak, steps=config.steps, warmup=config.warmup, least=config.min_lr)
            how: Any = {"clip": config.clip, "shares": shares, "of_features": of_features}
            apply_gradients(optimizer, parameters, totals, lr=lr, **how)
            seconds = time.perf_counter() - began
            profile_step()
            figures = step_figures(totals, objective.figures, step=step, seconds=seconds, lr=lr, epoch=data["epoch"])
            is_last = step == config.steps
            if job.evaluation is not None and (is_last or step % (config.eval_every or step + 1) == 0):
                figures = replace(figures, **evaluate(model, of_evaluation, job.evaluation, mesh, stop))
            report(figures)
            ends = is_last or totals.stop or figures.eval_stopped
            if saves is not None:
                saves.look()
                if ends or step % (config.save_every or config.steps) == 0:
                    saves.save(model, optimizer, replace(job.start, step=step, data=data), wait=ends)
            if ends:
                break
    if config.export is not None and step >= config.steps:
        how = {"lora": job.lora, "keep_adapters": config.keep_adapters, "dtype": config.export_dtype}
        export_model(model.inner, config.model, config.export, **how)
    return step


def build_model(job: Job, mesh: Mesh, device: torch.device, weights: Weights | None = None) -> PackedModel:
    """The job's model, sharded over the ranks of a replica, of which none holds the whole. All ranks call this.

    Before a checkpoint is loaded its parameters hold anything. ``weights`` says where they come from, if not the job.
    """
    config, on_host = job.config, state_on_host(job.config.offload)
    if weights is None:
        resumed = job.checkpoint is not None and config.lora is None and config.loss == "next_token"
        weights = "none" if resumed else "random" if config.from_scratch else "folder"

    def shard(model: Any) -> PackedModel:
        applied = model if job.parts is None else job.parts.apply(model)  # first, or peft would have inputs learn
        if config.recompute != "none" or config.mlp_tiles > 1:
            load_extra("saving").save_memory_of(model, config, device.type)
        packed = PackedModel(applied, logits_bytes=config.logits_mib * 2**20)
        if config.compile:
            load_extra("compiled").compile_blocks(unwrap(model))
        shard_model(packed, packed.blocks, mesh.parameters, bfloat16=config.dtype == "bfloat16", on_host=on_host)
        end_backward_at_decoder(applied)
        return packed

    where: Any = {"dtype": job.parameter_dtype, "device": device, "on_host": on_host}
    return load_sharded(config.model, shard, weights=weights, seed=config.seed, **where)


def read_batches(job: Job, model: PackedModel, mesh: Mesh, device: torch.device) -> Iterator[RankBatch]:
    """This rank's batches without end, from where the job starts."""
    of_model: Any = {"windows": model.windows, "groups": model.groups}
    tiles = TileLister.of(job.config.attention, mesh.cp, exchange="needed", device_type=device.type, **of_model)
    loader = make_loader(job.dataset, workers=job.config.workers, device=device, list_tiles=tiles)
    return iter(loader)


def add_gradients(
    model: PackedModel, objective: Objective, batches: Iterator[RankBatch], mesh: Mesh, work: Any, *, packs: int
) -> tuple[LocalTotals, dict[str, Any]]:
    """Adds the gradients of a step's packs to the parameters; returns this rank's share of the step, and the position
    in the dataset after it.
    """
    local = LocalTotals.zero(torch.device(mesh.world.device_type), len(objective.figures))
    for _ in range(packs):
        batch = next_batch(batches, local)
        local.work += work.of_rank(batch)
        began = time.process_time()
        measured = objective(model, batch, mesh.cp)
        measured.loss.backward()
        local.compute_time += time.process_time() - began
        local.add(batch, *measured[1:])
    return local, batch.state


def evaluate(
    model: PackedModel, objective: Objective, dataset: PackedDataset, mesh: Mesh, stop: Callable[[], bool]
) -> dict[str, Any]:
    """The loss over every pack of a dataset that is opened with ``dp_size`` 1, as fields of ``StepFigures``. Every pack
    counts once, however many are taken at a time. All ranks call this.
    """
    local = LocalTotals.zero(torch.device(mesh.world.device_type), len(objective.figures))
    try:
        with evaluating(model):
            for batch, counts in deal_packs(dataset, mesh, stop):
                measured = objective(model, batch, mesh.cp)
                if counts:
                    local.add(batch, *measured[1:])
    except StoppedError:
        return {"eval_stopped": True}
    sums = torch.cat([torch.stack([local.loss_sum, local.loss_weight]), local.rewards])
    dist.all_reduce(sums)
    loss, weight, *rewards = sums.tolist()
    means = mean_rewards(objective.figures, rewards, weight)
    return {"eval_loss": loss / weight if weight > 0 else None, "eval_rewards": means}


if __name__ == "__main__":
    sys.modules.pop("trainer", None)  # whoever imports it by its folder's name is refused again
    main()
