"""Packs in torchtitan's ``Trainer``: its models of text, meshes, checkpoints and metrics, with our attention.

torchtitan's own context parallelism cuts batches by a head-tail or a PTRR balancer, chosen by name; layouts of other
software do not go in there. So its degree makes the mesh and shards the parameters, while batches come cut already,
and the attention of packs stands in place of the model's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Any

import torch
import torch.distributed as dist
from jaxtyping import Float, Int64
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan.distributed import utils as titan
from torchtitan.trainer import Trainer

from preshard.schemas.errors import ConfigError
from preshard.schemas.sequence import IGNORE_INDEX
from preshard.trainer.attention.bind import Attend, bind, check_heads
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.kernels import kernel_for
from preshard.trainer.attention.listed import ListedKernel, TileLister
from preshard.trainer.attention.mask import MaskTensors
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.loader import make_loader
from preshard.trainer.integrations.torchtitan_model import NoTokenizer, loss_of_packs, take_attention


def on_packs(config: Trainer.Config, dataset: str, **options: Any) -> PackTrainer.Config:
    """A trainer's configuration with packs in place of its data, and what goes with them.

    The sequence length becomes the dataset's, a micro-batch one pack, and CUDA graphs are off, as what ranks exchange
    differs from pack to pack. ``build()`` makes the trainer, also from ``torchtitan.train --module`` and ``--config``.

    Args:
        config: of ``torchtitan.trainer.Trainer``. It is left as it is.
        dataset: the dataset's folder, a path or a URI.
        options: fields of ``PackLoader.Config``: ``layout``, ``attention``, ``ulysses_degree``, ``seed``, ...

    Raises:
        ReaderError: the dataset cannot be read.
    """
    given = copy.deepcopy({each.name: getattr(config, each.name) for each in fields(config)})
    given["dataloader"] = PackLoader.Config(dataset_path=dataset, **options)
    given["tokenizer"] = NoTokenizer()
    given["training"].local_batch_size = 1
    given["training"].seq_len = PackedDataset(dataset).files.config.seq_len
    given["training"].disable_cuda_graphs = True
    return PackTrainer.Config(**given)


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

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch, the same on all ranks."""
        return self._state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Goes to a position; iterations begin there. Raises as ``PackedDataset.load_state_dict`` does."""
        self._dataset.load_state_dict(state_dict)
        self._state = self._dataset.state_dict()


class PackTrainer(Trainer):
    """torchtitan's trainer on packs: ``on_packs(config, dataset).build()``.

    Steps, gradient accumulation, FSDP, tensor parallelism, clipping, checkpoints and metrics are torchtitan's. The loss
    is the mean over all tokens of all ranks and micro-batches by their weights.

    Raises:
        ConfigError: the model has layers that packs cannot follow, or an option means batches of torchtitan's own
            (messages name it).
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Trainer.Config):
        """Configuration of torchtitan's trainer, with the packs as the loader."""

        dataloader: PackLoader.Config = field(default_factory=PackLoader.Config)

    def __init__(self, config: Config) -> None:
        config = copy.deepcopy(config)
        self._heads = take_attention(config.model_spec.model)
        _check(config)
        config.loss = loss_of_packs(config.loss)
        super().__init__(config)

    def init_distributed(self) -> Any:
        """Joins the ranks, and tells the loader this rank's place among those of its pack."""
        dims, config = super().init_distributed(), self.config.dataloader
        self.cp = context_parallel(dims, config.ulysses_degree)
        found = {"ring_degree": self.cp.ring_degree, "cp_rank": self.cp.cp_rank, "device_type": self.device.type}
        for name, ours in found.items():
            if (given := getattr(config, name)) not in (None, ours):
                raise ConfigError(
                    f"dataloader.{name} is {given}, while this rank of context_parallel_degree {dims.cp} and "
                    f"ulysses_degree {config.ulysses_degree} has {ours}: leave it out"
                )
            setattr(config, name, ours)
        check_heads(
            config.attention,
            *(heads // dims.tp for heads in self._heads),
            ulysses_degree=self.cp.ulysses_degree,
            ring_degree=self.cp.ring_degree,
        )
        return dims

    def train_step(self, data_iterator: Iterator[Any]) -> None:
        """A step of torchtitan's, after the weights of all its packs are known."""
        samples = [next(data_iterator) for _ in range(self.gradient_accumulation_steps)]
        weight = torch.tensor(sum(inputs["batch"].total_loss_weight for inputs, _ in samples), dtype=torch.float64)
        weight = weight.to(self.device)
        if self.parallel_dims.dp_enabled:
            weight = titan.dist_sum_tensor(weight, self.parallel_dims.get_mesh("batch"))
        self._weight = torch.where(weight > 0, weight, 1.0)
        super().train_step(iter(samples))

    def forward_backward_step(
        self,
        *,
        input_dict: dict[str, Any],
        labels: Tensor,  # noqa: ARG002 (which are there to be counted)
        global_valid_tokens: Tensor,  # noqa: ARG002 (weights are not counts)
    ) -> Float[Tensor, ""]:
        """This rank's share of a step's loss, and its gradient."""
        batch: RankBatch = input_dict["batch"]
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
        attend = self._attend(batch)
        batch = batch.to(self.device, non_blocking=True)
        self.ntokens_seen += len(batch)
        with self.train_context():
            pred = self.model_parts[0](batch.tokens[None], positions=batch.position_ids, attention_masks=attend)
            weights = batch.loss_weights[None]
            loss: Tensor = self.loss_fn(pred, batch.labels[None], self._weight, loss_weights=weights)[0]
            del pred
            loss.backward()
        return loss

    def _attend(self, batch: RankBatch) -> Attend:
        kind, mask = self.config.dataloader.attention, MaskTensors.of(batch).to(self.device)
        kernel = ListedKernel(kernel_for(self.device.type), batch.tiles.calls)
        return bind(kind, batch.layout, mask, self.cp, kernel=kernel)


def _check(config: PackTrainer.Config) -> None:
    """Checks what would train on other batches, or not at all."""
    parallelism, packs = config.parallelism, _packs_of(config.dataloader)
    compiled = config.compile.enable and "model" in config.compile.components
    only: tuple[tuple[str, Any, Any, str], ...] = (
        ("training.local_batch_size", config.training.local_batch_size, 1, "a pack is a batch"),
        ("training.seq_len", config.training.seq_len, packs.files.config.seq_len, "packs have a length of their own"),
        ("training.disable_cuda_graphs", config.training.disable_cuda_graphs, True, "exchanges differ between packs"),
        ("compile.enable", compiled, False, "blocks compile as one graph, which packs break"),
        ("validator.enable", config.validator.enable, False, "torchtitan's validator reads and cuts texts of its own"),
        ("parallelism.pipeline_parallel_degree", parallelism.pipeline_parallel_degree, 1, "stages would need the mask"),
        ("parallelism.spmd_backend", parallelism.spmd_backend, "spmd_types", "attention takes plain tensors"),
        ("debug.spmd_typechecking", config.debug.spmd_typechecking, False, "the attention of packs declares no types"),
    )
    for name, value, wanted, why in only:
        if value != wanted:
            raise ConfigError(f"{name} is {value}, and {why}: set it to {wanted}")
    rows, ids = config.model_spec.model.vocab_size, packs.files.manifest.tokenizer.vocab_size
    if rows < ids:
        raise ConfigError(
            f"the model has an embedding of {rows} rows, and the packs' tokenizer has ids below {ids}: pack with the "
            "tokenizer of this model"
        )


def _packs_of(config: PackLoader.Config) -> PackedDataset:
    if not config.dataset_path:
        raise ConfigError("dataloader.dataset_path is empty: name the folder of a packed dataset")
    return PackedDataset(config.dataset_path)
