"""Packs as torchtitan's trainer reads them: a loader, the loss of one pack, and a validator over a dataset of packs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.components.validate import BaseValidator, Validator
from torchtitan.distributed import utils as titan
from torchtitan.tools import utils as tools

from preshard.schemas.errors import ConfigError
from preshard.schemas.sequence import IGNORE_INDEX
from preshard.trainer.attention.bind import bind
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.kernels import kernel_for
from preshard.trainer.attention.listed import ListedKernel, TileLister
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.loader import make_loader
from preshard.trainer.models.interface import Sealed


def context_parallel(parallel_dims: Any, ulysses_degree: int = 1) -> ContextParallel:
    """This rank's place among the ranks of its pack, which are those of the axis ``cp`` of torchtitan's mesh.

    All processes of the job call this together.

    Args:
        parallel_dims: torchtitan's ``ParallelDims``.
        ulysses_degree: how many of them deal the heads; the layout deals the tokens to the others.

    Raises:
        ConfigError: ``ulysses_degree`` does not divide the degree of ``cp``.
    """
    if ulysses_degree < 1 or parallel_dims.cp % ulysses_degree:
        raise ConfigError(
            f"ulysses_degree is {ulysses_degree}, which does not divide context_parallel_degree {parallel_dims.cp}: "
            "take a divisor of it"
        )
    if parallel_dims.cp == 1:
        return ContextParallel()
    mesh = parallel_dims.get_mesh("cp")
    packs: list[list[int]] = [[]] * dist.get_world_size()
    dist.all_gather_object(packs, mesh.mesh.tolist())
    ranks = torch.tensor(sorted({tuple(pack) for pack in packs})).view(len({*map(tuple, packs)}), -1, ulysses_degree)
    split = DeviceMesh(mesh.device_type, ranks, mesh_dim_names=("packs", "ring", "ulysses"))
    return ContextParallel.from_mesh(split, ring="ring", ulysses="ulysses")


class PackLoader(BaseDataLoader):
    """This rank's part of one pack after another, epoch after epoch, in the form of torchtitan's loaders.

    A batch is ``({"input": [1, local], "batch": RankBatch}, labels)``. The labels are there to be counted, by those who
    measure tokens per second and weigh losses: as many as the pack has tokens, those under loss as many as its sum of
    loss weights, rounded. Its state is the position in the data, which fits any number of ranks.

    Raises:
        ReaderError: as of ``PackedDataset``.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(BaseDataLoader.Config):
        """Source of the packs, and how the ranks of a pack share it.

        Attributes:
            dataset_path: the dataset's folder, a path or a URI.
            layout: which tokens each rank holds.
            attention: one of ``preshard.attention.KINDS``.
            ulysses_degree: how many ranks of a pack deal the heads.
            seed: of the order of packs.
            num_workers: processes that read ahead.
            ring_degree: ranks that the layout deals the tokens to; the trainer takes it from its mesh, as the next two.
            cp_rank: this rank's place among those of its pack.
            device_type: where the attention is computed.
        """

        layout: str = "contiguous"
        attention: str = "gather"
        ulysses_degree: int = 1
        seed: int = 0
        num_workers: int = 0
        ring_degree: int | None = None
        cp_rank: int | None = None
        device_type: str | None = None

    def __init__(
        self,
        config: Config,
        *,
        dp_world_size: int,
        dp_rank: int,
        **_: Any,
    ) -> None:
        ring_rank, ulysses_rank = divmod(config.cp_rank or 0, config.ulysses_degree)
        self._place = ContextParallel(
            ulysses_degree=config.ulysses_degree,
            ring_degree=config.ring_degree or 1,
            ulysses_rank=ulysses_rank,
            ring_rank=ring_rank,
        )
        self._dataset = PackedDataset(
            config.dataset_path,
            dp_rank=dp_rank,
            dp_size=dp_world_size,
            ulysses_degree=self._place.ulysses_degree,
            ring_degree=self._place.ring_degree,
            cp_rank=self._place.cp_rank,
            layout=config.layout,
            seed=config.seed,
        )
        self._config, self._state = config, self._dataset.state_dict()

    def __iter__(self) -> Iterator[tuple[dict[str, Any], Int64[Tensor, "1 seq"]]]:
        kind, workers, device = self._config.attention, self._config.num_workers, self._config.device_type or "cpu"
        tiles = TileLister.of(kind, self._place, exchange="needed", device_type=device)
        for batch in make_loader(self._dataset, workers=workers, device=device, list_tiles=tiles):
            self._state = batch.state
            labels = torch.full((1, batch.seq_len), IGNORE_INDEX)
            labels[:, : max(1, round(batch.total_loss_weight))] = 0
            yield {"input": batch.tokens[None], "batch": batch}, labels

    @property
    def steps_per_epoch(self) -> int:
        """Packs that this rank has a part of in an epoch."""
        return self._dataset.steps_per_epoch

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch, the same on all ranks."""
        return self._state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes to a position; iterations begin there. Raises as ``PackedDataset.load_state_dict`` does."""
        self._dataset.load_state_dict(state_dict)
        self._state = self._dataset.state_dict()


def place(config: PackLoader.Config, cp: ContextParallel, device_type: str) -> None:
    """Tells a loader's configuration this rank's place among those of its pack.

    Raises:
        ConfigError: it says another one.
    """
    for name, ours in {"ring_degree": cp.ring_degree, "cp_rank": cp.cp_rank, "device_type": device_type}.items():
        if (given := getattr(config, name)) not in (None, ours):
            raise ConfigError(
                f"dataloader.{name} is {given}, while this rank of context_parallel_degree {cp.cp_size} and "
                f"ulysses_degree {config.ulysses_degree} has {ours}: leave it out"
            )
        setattr(config, name, ours)


def loss_of_batch(
    model: Any, batch: RankBatch, loss_fn: Any, how: dict[str, Any], weight: Tensor | None = None
) -> Float[Tensor, ""]:
    """This rank's sum of loss weight x cross entropy, over ``weight`` if it is given.

    Raises:
        ConfigError: the pack is not for a model of text, or of preferences.
    """
    if len(batch.position_ids) > 1 or int(batch.pool_edges[-1]):
        raise ConfigError(
            f"pack {batch.pack_id} has images or positions of three axes, and the model reads text: pack the "
            "dataset for a model of text"
        )
    if any(batch.preferences):
        raise ConfigError(
            f"pack {batch.pack_id} holds preferences, and rejected answers would be learnt like chosen ones: pack "
            "chosen as completion"
        )
    device, mask = how["device"], MaskTensors.of(batch).to(how["device"])
    kernel = ListedKernel(kernel_for(device.type), batch.tiles.calls)
    attend = Sealed(bind(how["kind"], batch.layout, mask, how["cp"], kernel=kernel))
    batch = batch.to(device, non_blocking=True)
    pred = model(batch.tokens[None], positions=batch.position_ids, attention_masks=attend)
    loss: Tensor = loss_fn(pred, batch.labels[None], weight, loss_weights=batch.loss_weights[None])[0]
    return loss


class PackValidator(BaseValidator):
    """Mean loss over the packs of a dataset by their weights, each pack once, at the steps of torchtitan's validator.

    Packs that fill no step of all data-parallel ranks are left out.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Validator.Config):
        """Settings of torchtitan's validator, with packs as the loader; -1 steps are all packs."""

        dataloader: PackLoader.Config = field(default_factory=PackLoader.Config)

    def __init__(
        self,
        config: Config,
        *,
        parallel_dims: Any,
        dp_world_size: int,
        dp_rank: int,
        loss_fn: Any,
        validation_context: Any,
        metrics_processor: Any,
        **_: Any,
    ) -> None:
        super().__init__(config=config)
        given, device = config.dataloader, torch.device(tools.device_type)
        cp = context_parallel(parallel_dims, given.ulysses_degree)
        place(given, cp, device.type)
        self._how = {"kind": given.attention, "cp": cp, "device": device}
        self._ranks = {"dp_world_size": dp_world_size, "dp_rank": dp_rank}
        self._dims, self._loss_fn, self._context = parallel_dims, loss_fn, validation_context
        self._metrics = metrics_processor

    @torch.no_grad()
    def validate(self, model_parts: list[Any], step: int) -> None:
        """Logs the loss over the packs, and leaves the model in training mode."""
        [model] = model_parts
        model.eval()
        loader = PackLoader(self.config.dataloader, **self._ranks)
        steps = self.config.steps if self.config.steps > 0 else loader.steps_per_epoch
        sums = torch.zeros(2, dtype=torch.float64, device=self._how["device"])
        for inputs, labels in islice(loader, min(steps, loader.steps_per_epoch)):
            batch: RankBatch = inputs["batch"]
            self._metrics.ntokens_since_last_log += labels.numel()
            with self._context():
                loss = loss_of_batch(model, batch, self._loss_fn, self._how)
            sums += torch.stack([loss.detach().double(), batch.loss_weights.sum().double().to(sums.device)])
        if self._dims.dp_cp_enabled:
            mesh = self._dims.get_optional_mesh("loss")
            sums = torch.stack([titan.dist_sum_tensor(each, mesh) for each in sums])
        self._metrics.log_validation(loss=float(sums[0] / sums[1].clamp(min=1e-300)), step=step)
        model.train()
