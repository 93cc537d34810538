"""The run itself: from its first step to the last, with checkpoints in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.listed import TileLister
from preshard.trainer.core.checkpoint import Checkpoints, load_checkpoint
from preshard.trainer.core.config import DTYPES, TrainConfig
from preshard.trainer.core.export import export_model
from preshard.trainer.core.mesh import Mesh
from preshard.trainer.core.metrics import StepFigures, StepWork, imbalance, profiled
from preshard.trainer.core.processes import StoppedError
from preshard.trainer.core.setup import Job, open_dataset
from preshard.trainer.core.sharding import shard_model
from preshard.trainer.core.step import (
    LocalTotals,
    Totals,
    apply_gradients,
    join_totals,
    learning_rate,
    make_optimizer,
    take,
)
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.loader import make_loader
from preshard.trainer.extra.parts import end_backward_at_decoder
from preshard.trainer.extra.preferences import (
    BETA,
    Reference,
    deal_packs,
    find_reference,
    mean_rewards,
    preference_loss,
)
from preshard.trainer.extra.saving import inputs_wait, save_memory, state_on_host
from preshard.trainer.models import PackedModel
from preshard.trainer.models.compiled import compile_blocks
from preshard.trainer.models.interface import unwrap
from preshard.trainer.models.load import Weights, load_sharded
from preshard.trainer.models.named import feature_parameters
from preshard.trainer.models.noise import evaluating, seed_noise, train_without_noise


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
        stop: whether this rank was asked to stop. If one was, all stop after the current step and save a checkpoint;
            an evaluation is cut short for it.

    Returns:
        The last step done.

    Raises:
        DivergedError: the gradient is infinite or NaN.
        FormatError: a sample's bytes break the format.
    """
    config = job.config
    model = build_model(job, mesh, device)
    work = StepWork.of(unwrap(model.inner))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    of_features = feature_parameters(unwrap(model.inner))
    optimizer = make_optimizer(model, config)
    shares = [group["lr"] / config.largest_lr for group in optimizer.param_groups]
    try:
        reference, eval_reference = _references(job, mesh, model, stop)
    except StoppedError:
        return job.start.step
    if job.checkpoint is not None:
        load_checkpoint(job.checkpoint, model, optimizer)
    batches = read_batches(job, mesh, device, work)
    saves = None
    if config.checkpoint is not None:
        saves = Checkpoints(config.checkpoint, keep=config.keep, beside=config.async_save, damaged=job.damaged)
    with profiled(config.profile) as profiler:
        for step in range(job.start.step + 1, config.steps + 1):
            began = time.perf_counter()
            seed_noise(config.seed, step, dist.get_rank())
            local, data = add_gradients(job, mesh, model, work, batches, device, reference)
            totals = join_totals(local, parameters, replica=mesh.replica, cp_size=mesh.cp.cp_size, stop=stop())
            lr = learning_rate(step, config)
            apply_gradients(
                optimizer, parameters, totals, lr=lr, clip=config.clip, shares=shares, of_features=of_features
            )
            seconds = time.perf_counter() - began
            if profiler is not None:
                profiler.step()
            figures = _figures(totals, config, step=step, step_time=seconds, lr=lr, epoch=data["epoch"])
            is_last = step == config.steps
            ends = is_last or totals.stop
            if job.evaluation is not None and (is_last or step % (config.eval_every or step + 1) == 0):
                try:
                    figures = replace(figures, **evaluate(model, job.evaluation, mesh, config, eval_reference, stop))
                except StoppedError:
                    figures, ends = replace(figures, eval_stopped=True), True
            report(figures)
            if saves is not None:
                saves.look()
                if ends or step % (config.save_every or config.steps) == 0:
                    saves.save(model, optimizer, replace(job.start, step=step, data=data))
                if ends:
                    saves.finish()
            if ends:
                return _finish(job, model, step)
    return _finish(job, model, job.start.step)


def _references(
    job: Job, mesh: Mesh, model: PackedModel, stop: Callable[[], bool]
) -> tuple[Reference | None, Reference | None]:
    """What answers of both datasets are compared with where preferences are learnt; the model then has no noise.

    It is the model as the run began, also where that is resumed.
    """
    config = job.config
    if config.loss != "dpo":
        return None, None
    datasets = [open_dataset(config, path, mesh.cp.cp_rank) for path, _ in config.datasets]
    both = (datasets, [] if job.evaluation is None else [job.evaluation])
    reference, of_evaluation = (find_reference(model, each, mesh, stop, **_exchanges(config)) for each in both)
    train_without_noise(model)  # or what tells it from its reference would be noise, too
    return reference, of_evaluation


def read_batches(job: Job, mesh: Mesh, device: torch.device, work: StepWork) -> Iterator[RankBatch]:
    """This rank's batches without end, from where the job starts."""
    tiles = TileLister.of(
        job.config.attention,
        mesh.cp,
        exchange="needed",
        device_type=device.type,
        windows=work.windows,
        groups=work.groups,
    )
    loader = make_loader(job.dataset, workers=job.config.workers, device=device, list_tiles=tiles)
    return iter(loader)


def _finish(job: Job, model: PackedModel, step: int) -> int:
    """Writes the model if this step was the last; returns the step."""
    config = job.config
    if config.export is not None and step >= config.steps:
        lora = config.parts.lora
        export_model(model.inner, config.model, config.export, lora=lora, keep_adapters=config.keep_adapters)
    return step


def build_model(job: Job, mesh: Mesh, device: torch.device, weights: Weights | None = None) -> PackedModel:
    """The job's model, sharded over the ranks of a replica, of which none holds the whole. All ranks call this.

    Before a checkpoint is loaded its parameters hold anything. ``weights`` says where they come from, if not the job.
    """
    config = job.config
    if weights is None:
        resumed = job.checkpoint is not None and config.lora is None and config.loss == "next_token"
        weights = "none" if resumed else "random" if config.from_scratch else "folder"

    on_host = state_on_host(config.offload)

    def shard(model: nn.Module) -> PackedModel:
        applied = config.parts.apply(model)  # before blocks are computed again, for which peft would have inputs learn
        save_memory(
            model,
            recompute=config.recompute,
            offload=inputs_wait(config.offload),
            mlp_tiles=config.mlp_tiles,
            device_type=device.type,
            noise=config.loss != "dpo",
        )
        packed = PackedModel(applied, logits_bytes=config.logits_mib * 2**20)
        if config.compile:
            compile_blocks(unwrap(model))
        how: Any = {"bfloat16": config.dtype == "bfloat16", "on_host": on_host}
        shard_model(packed, packed.blocks, mesh.parameters, **how)
        end_backward_at_decoder(applied)
        return packed

    return load_sharded(
        config.model,
        shard,
        # AdamW's updates are too small for bfloat16 to represent
        dtype=torch.float32 if config.dtype == "bfloat16" else DTYPES[config.dtype],
        weights=weights,
        seed=config.seed,
        device=device,
        on_host=on_host,
    )


def _figures(totals: Totals, config: TrainConfig, *, step: int, step_time: float, lr: float, epoch: int) -> StepFigures:
    has_loss = totals.loss_weight > 0
    tflops = sum(totals.work) / step_time / len(totals.work) / 1e12
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
        tokens_per_second=totals.tokens / step_time,
        tflops=tflops,
        mfu=tflops / config.peak_tflops if config.peak_tflops is not None else None,
        predicted_work=[work / 1e12 for work in totals.work],
        compute_times=totals.compute_times,
        predicted_imbalance=imbalance(totals.work),
        measured_imbalance=imbalance(totals.compute_times) if totals.compute_times else None,
        rewards=mean_rewards(totals.rewards, totals.loss_weight) if config.loss == "dpo" else None,
    )


def add_gradients(
    job: Job,
    mesh: Mesh,
    model: PackedModel,
    work: StepWork,
    batches: Iterator[RankBatch],
    device: torch.device,
    reference: Reference | None = None,
) -> tuple[LocalTotals, dict[str, Any]]:
    """Adds the gradients of one step's packs to the parameters; returns what they were, and the position after them."""
    local = LocalTotals.zero(device)
    for _ in range(job.config.accumulate):
        batch = take(batches, local)
        local.work += work.of_rank(batch)
        began = time.process_time()
        loss, share = _measure(model, batch, mesh.cp, job.config, reference)
        loss.backward()
        local.compute_time += time.process_time() - began
        local.add(batch, *share)
    return local, batch.state


def _measure(
    model: PackedModel, batch: RankBatch, cp: ContextParallel, config: TrainConfig, reference: Reference | None
) -> tuple[Tensor, tuple[Any, ...]]:
    """The loss that this rank takes the gradient of, and its share of the pack's sums for ``LocalTotals.add``."""
    if reference is None:
        loss = model(batch, cp, **_exchanges(config))
        return loss, (loss,)
    losses = model(batch, cp, per_token=True, **_exchanges(config))
    sums = preference_loss(losses, batch, cp, reference, config.beta or BETA)
    # each rank of a pack has the loss of all of its pairs
    return sums[0], tuple(each / cp.cp_size for each in sums)


def _exchanges(config: TrainConfig) -> dict[str, Any]:
    """How ranks exchange, as arguments of the model's call."""
    return {
        "attention": config.attention,
        "overlap": config.overlap,
        "head_stride": config.head_stride,
    }


def evaluate(
    model: PackedModel,
    dataset: PackedDataset,
    mesh: Mesh,
    config: TrainConfig,
    reference: Reference | None,
    stop: Callable[[], bool],
) -> dict[str, Any]:
    """The run's loss over every pack of another dataset, and rewards if it is of preferences. All ranks call this.

    Every pack counts once, however many are taken at a time.

    Args:
        model: stays as it is.
        dataset: opened with ``dp_size`` 1; the packs are dealt here.
        mesh: of all ranks.
        config: of the run.
        reference: with ``--loss dpo``, of this dataset.
        stop: whether this rank was asked to stop.

    Returns:
        Fields of ``StepFigures``, the same on all ranks. The loss is None if no token of the dataset has one.

    Raises:
        StoppedError: a rank was; all ranks raise it.
    """
    device = torch.device(mesh.world.device_type)
    local = LocalTotals.zero(device)
    with evaluating(model):
        for batch, counts in deal_packs(dataset, mesh, stop):
            _, share = _measure(model, batch, mesh.cp, config, reference)
            if counts:
                local.add(batch, *share)
    sums = torch.cat([torch.stack([local.loss_sum, local.loss_weight]), local.rewards])
    dist.all_reduce(sums)
    loss, weight, *rewards = sums.tolist()
    if reference is not None:
        return {"eval_loss": loss / weight, "eval_rewards": mean_rewards(rewards, weight)}
    return {"eval_loss": loss / weight if weight > 0 else None}
