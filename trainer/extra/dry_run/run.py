"""One rank's own training step on a device that is not there: what it would hold, send, wait for and run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any, get_args

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed._tools.fake_collectives  # torch 2.10 has no results of collectives on fake tensors without it
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.testing._internal.distributed.fake_pg import FakeStore

from preshard.schemas.errors import ConfigError
from preshard.schemas.model.devices import DEVICES
from preshard.trainer.core.config import Gpu, TrainConfig
from preshard.trainer.core.objective import NextToken, exchanges_of
from preshard.trainer.core.optimizer import make_optimizer
from preshard.trainer.core.setup import Job, make_mesh, prepare
from preshard.trainer.core.step import apply_gradients, join_totals
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.order import epoch_order
from preshard.trainer.data.pack_index import PackTable
from preshard.trainer.extra import compiled
from preshard.trainer.extra.dry_run.device import fake_cuda, patched
from preshard.trainer.extra.dry_run.fused import fuse_blocks
from preshard.trainer.extra.dry_run.ledger import PARTS, Ledger
from preshard.trainer.extra.memory_check import FitEstimate
from preshard.trainer.extra.work import StepWork
from preshard.trainer.models.interface import unwrap
from preshard.trainer.train import add_gradients, build_model, read_batches

assert set(DEVICES) == set(get_args(Gpu))

STEPS = 2
"""The first step makes the optimiser's state; the second is what all others are like."""


@dataclass(frozen=True, kw_only=True)
class DryRun:
    """Work of one rank in a step, by counting. Nothing was computed, and no GPU has confirmed it.

    Attributes:
        config: the settings, without ``auto``.
        rank, world: this rank, of how many.
        packs: of the step, on this rank.
        tokens, patches: that the rank holds and encodes.
        device: bytes of the device.
        state: bytes between steps.
        peak, parts: the most bytes at once, and what they are for, by ``ledger.PARTS``.
        peaks: the most bytes of each phase.
        host: the most bytes on the host of what leaves the device: page-locked memory that the step asks for, and
            parameters, gradients and the optimiser's state where they stay there.
        waits, blocking, pageable: places in the code and how often each makes the host wait for the device, makes it
            wait for a copy to it, and copies from memory that is not page-locked.
        copied: bytes that travel between host and device, by phase and direction, ``to host`` or ``to device``.
        collectives: calls and bytes, by phase and kind.
        kernels, moved: calls of operators and bytes that they read and write, by phase and class.
        flops: operations of products and of the encoder's attention.
        estimate: what the trainer estimates for all packs, if it can.
    """

    config: TrainConfig
    rank: int
    world: int
    packs: list[int]
    tokens: int
    patches: int
    device: int
    state: int
    peak: int
    parts: dict[str, int]
    peaks: dict[str, int]
    host: int
    waits: Counter[str]
    blocking: Counter[str]
    pageable: Counter[str]
    copied: Counter[tuple[str, str]]
    collectives: dict[tuple[str, str], list[int]]
    kernels: Counter[tuple[str, str]]
    moved: Counter[tuple[str, str]]
    flops: Counter[str]
    estimate: FitEstimate | None

    def moved_by(self, kind: str) -> int:
        """Bytes that operators of a class read and write, in all phases."""
        return sum(size for (_, each), size in self.moved.items() if each == kind)

    def kernels_of(self, kind: str) -> int:
        """Calls of operators of a class, in all phases."""
        return sum(count for (_, each), count in self.kernels.items() if each == kind)


def dry_run(config: TrainConfig) -> DryRun:
    """Takes two steps of one rank on fake tensors and counts the second.

    Everything is the trainer's own: setting up, sharding, forward, backward, the exchanges of attention with ranks that
    are not there, and the optimiser. The host's part is done; the device's part is not. FlexAttention is replaced by
    an operator with its results, and what ``torch.compile`` would fuse is counted operator by operator.

    Args:
        config: with ``dry_run``; weights are neither needed nor read.

    Raises:
        PreshardError: as ``prepare``; or the model asks for a size that only the device would know.
    """
    plain = {"from_scratch": True, "memory_check": "off", "device": "cuda", "workers": 0}
    given = config.model_copy(update=plain)
    world = config.world or config.dp_shard * config.cp_size
    ledger, device = Ledger(), torch.device("cuda")
    memory = int(DEVICES[config.gpu].memory_gb * 1e9)
    with fake_cuda(memory, ledger.wait):
        job = _at_pack(prepare(given, rank=config.cp_rank or 0, world_size=world, device_type="cuda"), config.pack)
        if config.cp_rank is None and (rank := _fullest_rank(next(iter(job.dataset)), job.dataset.cp_size)):
            job = _at_pack(prepare(given, rank=rank, world_size=world, device_type="cuda"), config.pack)
        rank = job.dataset.dp_rank * config.cp_size + job.dataset.cp_rank
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world)
        try:
            replaced, fuse = compiled.compile_blocks.__name__, partial(fuse_blocks, ledger=ledger)
            with ledger, _counting_sizes(ledger), patched(compiled, replaced, fuse):
                return _steps(job, ledger, world, device, memory)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            raise ConfigError(
                f"--dry-run: {job.config.model} makes the host wait for a size that only the device knows "
                f"({str(error).splitlines()[0]}), so the step cannot be counted"
            ) from None
        finally:
            dist.destroy_process_group()


def _steps(job: Job, ledger: Ledger, world: int, device: torch.device, memory: int) -> DryRun:
    config = job.config
    mesh = make_mesh(config, world, device.type)
    with ledger.during("parameters"):
        model = build_model(job, mesh, device, weights="none")
    optimizer = make_optimizer(model, lr=config.largest_lr, own_rates=job.own_rates(model))
    objective = NextToken(**exchanges_of(config))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    work = StepWork.of(unwrap(model.inner))
    batches = list(islice(read_batches(job, model, mesh, device), config.accumulate))
    model.register_forward_pre_hook(lambda *_: setattr(ledger, "phase", "forward"))
    model.register_forward_hook(lambda *_: setattr(ledger, "phase", "backward"))
    for _ in range(STEPS):
        ledger.restart()
        state = ledger.live
        with ledger.during("forward"):
            local, _ = add_gradients(model, objective, iter(batches), mesh, work, packs=config.accumulate)
        with ledger.during("totals"):
            totals = join_totals(local, parameters, replica=mesh.replica, cp_size=mesh.cp.cp_size, stop=False)
        with ledger.during("optimizer"):
            apply_gradients(optimizer, parameters, totals, lr=0.0, clip=config.clip)
    return DryRun(
        config=config,
        rank=dist.get_rank(),
        world=world,
        packs=[batch.pack_id for batch in batches],
        tokens=max(len(batch) for batch in batches),
        patches=max(_patches(batch) for batch in batches),
        device=memory,
        state=state,
        peak=ledger.peak,
        parts={part: ledger.at_peak[part] for part in PARTS if ledger.at_peak[part]},
        peaks=ledger.peaks,
        host=ledger.most_host,
        waits=ledger.waits,
        blocking=ledger.blocking,
        pageable=ledger.pageable,
        copied=ledger.copied,
        collectives=ledger.collectives,
        kernels=ledger.kernels,
        moved=ledger.moved,
        flops=ledger.flops,
        estimate=job.memory,
    )


def _patches(batch: RankBatch) -> int:
    return sum(int(np.prod(unit.grid)) for unit in batch.units)


def _fullest_rank(batch: RankBatch, cp_size: int) -> int:
    """The rank with most rows of images of a pack, and of those the one that needs most keys."""
    needs = batch.layout.needs.sum(axis=1)
    return int(np.lexsort((needs.repeat(cp_size // len(needs)), batch.pool_edges.diff().numpy()))[-1])


def _at_pack(job: Job, pack: int | None) -> Job:
    """The job at the step that takes a pack, as the rank that gets it; by default, the one with most patches.

    Raises:
        ConfigError: there is no such pack, or several datasets are mixed.
    """
    dataset, n_packs = job.dataset, job.dataset.n_packs
    if dataset.is_mixture:
        if pack is not None:
            raise ConfigError(f"--pack is {pack}, and several datasets are mixed: leave it out, or give one --data")
        return job
    if pack is None:
        table = PackTable(dataset.files.open_packs, dataset.files.manifest.counts.packs)
        pack = int(table.columns(0, ("n_patches",))[0].argmax())
        table.close()
    if not 0 <= pack < n_packs:
        raise ConfigError(f"--pack is {pack}; the dataset has the packs 0 to {n_packs - 1}")
    window, phases = dataset.files.config.order.window, dataset.files.manifest.phases
    order = epoch_order(n_packs, window=window, seed=dataset.seed, epoch=0, phases=phases)
    place = int(np.flatnonzero(order == pack)[0])
    position = min(place // dataset.dp_size * dataset.dp_size, n_packs - dataset.dp_size)
    dataset.dp_rank = place - position
    dataset.load_state_dict({**dataset.state_dict(), "epoch": 0, "position": position})
    return replace(job, start=replace(job.start, data=dataset.state_dict()))


@contextmanager
def _counting_sizes(ledger: Ledger) -> Iterator[None]:
    """FSDP gives memory of whole parameters back by a call that no dispatch mode sees."""
    resize = torch.UntypedStorage.resize_

    def resized(storage: torch.UntypedStorage, size: int) -> Any:
        resize(storage, size)
        ledger.resized(storage)
        return storage

    torch.UntypedStorage.resize_ = resized  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        torch.UntypedStorage.resize_ = resize  # type: ignore[method-assign]
