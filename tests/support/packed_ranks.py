"""Work of the ranks of a job on packs with a Hugging Face model, by one call that many cases share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from planted_faults import planted
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from preshard.trainer.attention.listed import TileLister
from preshard.trainer.core.config import make_config
from preshard.trainer.core.mesh import CpFsdp, Mesh, build_mesh
from preshard.trainer.core.metrics import StepFigures
from preshard.trainer.core.setup import prepare
from preshard.trainer.core.sharding import end_backward_at_decoder, shard_model
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.extra.parts import Parts
from preshard.trainer.extra.saving import save_memory
from preshard.trainer.models.load import Weights, load_model, load_sharded
from preshard.trainer.models.packed import PackedModel
from preshard.trainer.train import run

NO_PARTS = Parts()

Case = Mapping[str, Any]
"""``kind`` and ``layout``; optionally ``fault``, the name of a mistake to make on the last rank; ``overlap``, of the
exchange of heads; ``listed``, whether tiles are listed before the step."""


Answer = dict[str, Any]
"""One rank's share of one case.

``loss``, the sum of its losses; ``gradient`` of all parameters over all ranks, one after the other, from rank 0 alone;
``packs`` that it took; ``units``, how many of each pack it held; ``faults``, in how many packs it made the mistake.
"""


def train_on_packs(
    mesh: Mesh,
    folder: str,
    cases: Sequence[Case],
    dtype: str = "float64",
    saving: Mapping[str, Any] | None = None,
    cp_fsdp: CpFsdp = "all",
) -> list[Answer]:
    """Loss and gradient of all packs, for each case. Runs on each rank of a pool."""
    if cp_fsdp != "all":
        mesh = mesh_of(tuple(mesh.world.mesh.shape), cp_fsdp)
    model = experts_in_float64(load_model(f"{folder}/model", dtype=getattr(torch, dtype)))
    save_memory(model, **(saving or {}))
    packed = PackedModel(model)
    shard_model(packed, packed.blocks, mesh.parameters, bfloat16=False)
    return [_train(mesh, packed, f"{folder}/dataset", case) for case in cases]


def load_on_a_rank(
    mesh: Mesh,
    folder: str,
    *,
    weights: Weights = "folder",
    dtype: torch.dtype = torch.float64,
    parts: Parts = NO_PARTS,
    saving: Mapping[str, Any] | None = None,
) -> PackedModel:
    """A model folder's model, of which each rank loads its part. Runs on each rank of a pool."""

    def shard(model: nn.Module) -> PackedModel:
        applied = parts.apply(model)
        save_memory(model, **(saving or {}))
        packed = PackedModel(applied)
        shard_model(packed, packed.blocks, mesh.parameters, bfloat16=False)
        end_backward_at_decoder(applied)
        return packed

    return load_sharded(folder, shard, weights=weights, seed=3, dtype=dtype)


@contextmanager
def counting_weights() -> Iterator[list[int]]:
    """The bytes that ``transformers`` takes out of files of weights, each time that it does."""
    from transformers import modeling_utils

    taken: list[int] = []

    class Counted:
        """A file, or a tensor of it; else what it stands for."""

        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def get_slice(self, name: str) -> Counted:
            return Counted(self._inner.get_slice(name))

        def __getitem__(self, index: Any) -> Any:
            found = self._inner[index]
            taken.append(found.nbytes)
            return found

        def __getattr__(self, name: str) -> Any:
            return getattr(self._inner, name)

        def __enter__(self) -> Counted:
            return self

        def __exit__(self, *args: object) -> None:
            self._inner.__exit__(*args)

    opened = modeling_utils.safe_open
    with patch.object(modeling_utils, "safe_open", lambda *given, **named: Counted(opened(*given, **named))):
        yield taken


def train_job(mesh: Mesh, options: dict[str, object]) -> list[StepFigures]:
    """The steps of a run, as this rank of a pool reports them.

    What stays on the host of a GPU is refused on a CPU, so it is asked for late.
    """
    given = dict(options)
    away = {"offload": given.pop("offload", "none")}
    job = prepare(make_config(given), rank=dist.get_rank(), world_size=dist.get_world_size())
    job = replace(job, config=job.config.model_copy(update=away))
    figures: list[StepFigures] = []
    run(job, mesh, torch.device("cpu"), figures.append)
    return figures


def experts_in_float64(model: Any) -> Any:
    """The same model, whose experts use what exists in float64, too."""
    for part in (model.config, model.config.get_text_config()):  # some models with images set it for neither
        part._experts_implementation = "eager"
    return model


@cache
def mesh_of(degrees: tuple[int, ...], cp_fsdp: CpFsdp) -> Mesh:
    """The pool's mesh, whose parameters are sharded over other axes."""
    dp_replicate, dp_shard, ring, ulysses = degrees
    return build_mesh(
        "cpu",
        dp_replicate=dp_replicate,
        dp_shard=dp_shard,
        ring_degree=ring,
        ulysses_degree=ulysses,
        cp_fsdp=cp_fsdp,
    )


def _train(mesh: Mesh, packed: PackedModel, dataset: str, case: Case) -> Answer:
    cp, total, faults = mesh.cp, 0.0, 0
    read: list[RankBatch] = []
    packed.zero_grad()
    fault = case.get("fault")
    for batch in PackedDataset(
        dataset,
        dp_rank=mesh.dp_rank,
        dp_size=mesh.dp_size,
        ulysses_degree=cp.ulysses_degree,
        ring_degree=cp.ring_degree,
        cp_rank=cp.cp_rank,
        layout=case["layout"],
        tail="drop",  # a pack that comes twice would count twice
    ):
        kind = case["kind"]
        with planted(fault, packed, batch, last=cp.cp_rank == cp.cp_size - 1) as (given, made):
            tiles = TileLister.of(
                kind, cp, exchange="needed", device_type="cpu", windows=packed.windows, groups=packed.groups
            )
            with torch.autocast("cpu", torch.bfloat16, enabled=case.get("autocast", False)):
                loss = packed(
                    replace(given, tiles=tiles(given)) if case.get("listed") else given,
                    cp,
                    attention=kind,
                    features="gather" if kind == "ulysses" else "route",
                    overlap=case.get("overlap", False),
                )
            loss.backward()
        total += loss.item()
        faults += made
        read.append(batch)
    gradient = flat_gradient(packed)
    return {
        "loss": total,
        "gradient": gradient if dist.get_rank() == 0 else None,
        "packs": [batch.pack_id for batch in read],
        "units": [len(batch.units) for batch in read],
        "faults": faults,
    }


def flat_gradient(model: nn.Module) -> Tensor:
    """The gradients of all parameters, one after the other; every parameter that trains must have one."""
    missing = [name for name, one in model.named_parameters() if one.requires_grad and one.grad is None]
    assert not missing, f"no gradient: {missing}"
    grads = [torch.zeros_like(one) if one.grad is None else one.grad for one in model.parameters()]
    return torch.cat([(g.full_tensor() if isinstance(g, DTensor) else g).double().flatten() for g in grads])
