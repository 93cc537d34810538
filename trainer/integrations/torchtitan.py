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
from jaxtyping import Float
from torch import Tensor
from torchtitan.distributed import utils as titan
from torchtitan.trainer import Trainer

from preshard.schemas.errors import ConfigError
from preshard.trainer.attention.bind import check_heads
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.integrations.torchtitan_data import (
    PackLoader,
    PackValidator,
    context_parallel,
    loss_of_batch,
    place,
)
from preshard.trainer.integrations.torchtitan_model import NoTokenizer, loss_of_packs, take_attention


def on_packs(
    config: Trainer.Config, dataset: str, *, validation: str | None = None, **options: Any
) -> PackTrainer.Config:
    """A trainer's configuration with packs in place of its data, and what goes with them.

    The sequence length becomes the dataset's, a micro-batch one pack, and CUDA graphs are off, as what ranks exchange
    differs from pack to pack. ``build()`` makes the trainer, also from ``torchtitan.train --module`` and ``--config``.

    Args:
        config: of ``torchtitan.trainer.Trainer``. It is left as it is.
        dataset: the dataset's folder, a path or a URI.
        validation: another, over which torchtitan's ``validator.freq`` and ``steps`` take the loss.
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
    if validation is not None:
        held_out = PackLoader.Config(dataset_path=validation, **options)
        steps, freq = config.validator.steps, config.validator.freq
        given["validator"] = PackValidator.Config(enable=True, steps=steps, freq=freq, dataloader=held_out)
    return PackTrainer.Config(**given)


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
        if config.compile.enable and "model" in config.compile.components:
            for block in self.model_parts[0].layers.values():
                block.compile(backend=config.compile.backend)  # torchtitan's is one graph, which attention breaks

    def init_distributed(self) -> Any:
        """Joins the ranks, and tells the loader this rank's place among those of its pack."""
        dims, config = super().init_distributed(), self.config.dataloader
        self.cp = context_parallel(dims, config.ulysses_degree)
        place(config, self.cp, self.device.type)
        check_heads(
            config.attention,
            *(heads // dims.tp for heads in self._heads),
            ulysses_degree=self.cp.ulysses_degree,
            ring_degree=self.cp.ring_degree,
        )
        self._pass = {"kind": config.attention, "cp": self.cp, "device": self.device}
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
        self.ntokens_seen += len(batch)
        with self.train_context():
            loss = loss_of_batch(self.model_parts[0], batch, self.loss_fn, self._pass, self._weight)
            loss.backward()
        return loss


def _check(config: PackTrainer.Config) -> None:
    """Checks what would train on other batches, or not at all."""
    parallelism, packs = config.parallelism, _packs_of(config.dataloader)
    read = config.validator.enable and not isinstance(config.validator, PackValidator.Config)
    only: tuple[tuple[str, Any, Any, str], ...] = (
        ("training.local_batch_size", config.training.local_batch_size, 1, "a pack is a batch"),
        ("training.seq_len", config.training.seq_len, packs.files.config.seq_len, "packs have a length of their own"),
        ("training.disable_cuda_graphs", config.training.disable_cuda_graphs, True, "exchanges differ between packs"),
        ("validator.enable", read, False, "torchtitan's validator reads and cuts texts of its own"),
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
