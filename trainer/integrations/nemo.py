"""Packs in the finetune recipe of NeMo AutoModel: a dataset, a collate function and a model that its YAML names.

Steps, sharding, optimiser, checkpoints and loss are the recipe's; the model's context-parallel sharder, for which the
recipe asks it, hands over this rank's part of each pack, and the attention of packs stands in place of the model's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import MethodType
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor, nn
from torch.utils.data import Dataset

from preshard.schemas.errors import ConfigError
from preshard.schemas.sequence import IGNORE_INDEX
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.integrations.varlen import unequal_weights
from preshard.trainer.models.load import load_model
from preshard.trainer.models.packed import LENDS, PackedModel


class PackDataset(Dataset[RankBatch]):
    """This rank's part of each pack of an epoch, by number. The recipe's sampler deals packs to data-parallel ranks.

    Args:
        path: the dataset's folder, a path or a URI.
        layout: which tokens each rank holds.
        ring_degree: ``distributed.cp_size`` of the recipe, whose context-parallel ranks are neighbours.
        seed: of the order of packs.

    Raises:
        ReaderError: as of :class:`preshard.data.PackedDataset`.
    """

    def __init__(self, path: str, *, layout: str = "contiguous", ring_degree: int = 1, seed: int = 0, **_: Any) -> None:
        rank = int(os.environ.get("RANK", "0")) % ring_degree
        self._packs = PackedDataset(path, layout=layout, ring_degree=ring_degree, cp_rank=rank, seed=seed)

    def __len__(self) -> int:
        return self._packs.steps_per_epoch

    def __getitem__(self, number: int) -> RankBatch:
        return self._packs.read_step(0, number)


def collate_packs(batches: list[RankBatch]) -> dict[str, Any]:
    """One pack as the recipe's batch: ``input_ids`` [1, local], ``pack``, and labels [1, seq] to be counted.

    Raises:
        ConfigError: there are several packs, or labels count fractions, for which the recipe's losses have no place.
    """
    if len(batches) != 1:
        raise ConfigError(f"step_scheduler.local_batch_size is {len(batches)}, and a pack is a batch: set it to 1")
    [batch] = batches
    if unequal := unequal_weights(batch):
        raise ConfigError(f"{unequal}, and losses of NeMo AutoModel weigh all alike: pack without weights")
    labels = batch.labels[None]
    if len(batch) < batch.seq_len:  # the recipe counts labels of whole packs before it asks the sharder for ours
        labels = torch.full((1, batch.seq_len), IGNORE_INDEX)
        labels[:, : round(batch.total_loss_weight)] = 0
    return {"input_ids": batch.tokens[None], "labels": labels, "pack": batch}


def load_for_packs(path: str, *, attention: str = "gather", dtype: str = "bfloat16", **_: Any) -> nn.Module:
    """A model whose ``forward`` takes the batches of :func:`collate_packs`, as the recipe's ``model._target_``.

    Its output has this rank's hidden states, and logits of the last ``logits_to_keep`` tokens, 0 for all: losses that
    project by themselves (``FusedLinearCrossEntropy``, ``ChunkedCrossEntropy``) ask for one.

    Args:
        path: folder of a Hugging Face model.
        attention: one of ``preshard.attention.KINDS``.
        dtype: of its parameters.

    Raises:
        ConfigError: the model is of no supported kind.
    """
    model: Any = load_model(path, dtype=getattr(torch, dtype))
    head = model.get_output_embeddings()
    kind = type(head)
    packed = PackedModel(model)
    head.__class__ = kind  # the recipe's losses take its weight themselves

    def forward(
        self: Any,
        input_ids: Int64[Tensor, "1 local"],  # noqa: ARG001 (which the recipe reads)
        pack: RankBatch,
        cp: ContextParallel | None = None,
        logits_to_keep: int = 0,
        output_hidden_states: bool = True,  # noqa: ARG001 (they are there)
    ) -> Any:
        from transformers.modeling_outputs import CausalLMOutput

        with _without_head(model):
            hidden = packed(pack, cp or ContextParallel(), attention=attention)[None]
        return CausalLMOutput(logits=self.get_output_embeddings()(hidden[:, -logits_to_keep:]), hidden_states=(hidden,))

    from nemo_automodel._transformers.capabilities import ModelSupports

    model.supports = ModelSupports(model)
    model.forward = MethodType(forward, model)
    model.prepare_model_inputs_for_cp = MethodType(_prepare_for_cp, model)
    return model


class _NoHead:
    """Output projection that gives hidden states as they are."""

    def __call__(self, hidden: Tensor, _: Any) -> Tensor:
        return hidden


setattr(_NoHead, LENDS, True)


@contextmanager
def _without_head(model: Any) -> Iterator[None]:
    model.get_output_embeddings = _NoHead
    try:
        yield
    finally:
        del model.get_output_embeddings


def _prepare_for_cp(self: Any, batch: dict[str, Any], num_chunks: int = 1) -> dict[str, Any]:  # noqa: ARG001
    """The sharder by which the recipe cuts a batch for context-parallel ranks. Ours comes cut."""
    from nemo_automodel.components.distributed.context_parallel.sharder import ContextParallelSharder, ShardLayout

    def shard(mesh: Any, _: Any, batch: dict[str, Any], **__: Any) -> tuple[Any, dict[str, Any], Any]:
        pack: RankBatch = batch["pack"]
        cp = ContextParallel.from_mesh(mesh, ring=mesh.mesh_dim_names[0])
        layout = ShardLayout(pack.positions, original_seq_len=pack.seq_len, padded_seq_len=pack.seq_len)
        return nullcontext, {**batch, "labels": pack.labels[None], "cp": cp}, layout

    return {"cp_sharder": ContextParallelSharder(shard_batch=shard)}
