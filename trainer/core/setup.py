"""Prepares a run and checks, on every rank and before the first step, that its parts fit each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from preshard.schemas.errors import ConfigError
from preshard.schemas.files.printed import several
from preshard.trainer.attention.bind import check_heads
from preshard.trainer.attention.kernels import check_kernel
from preshard.trainer.core.checkpoint import RunState, find_checkpoint, read_run_state
from preshard.trainer.core.config import DTYPES, OF_A_MACHINE, TrainConfig, option
from preshard.trainer.core.mesh import Mesh, build_mesh
from preshard.trainer.core.optimizer import OwnRate
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.extras import load_extra
from preshard.trainer.models.interface import load_states, unwrap
from preshard.trainer.models.load import empty_model, identity, model_sizes, read_model_config


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run that is ready to start.

    Attributes:
        config: the settings, without ``auto``.
        dataset: this rank's part, at the position where the run starts.
        start: what the run starts from: step 0, or what the checkpoint holds.
        checkpoint: the checkpoint to load, if any.
        damaged: newer ones, each with what is wrong with it.
        evaluation: the second dataset, if any, with all its packs for each data-parallel rank.
        memory: the extra's estimate of what a rank holds, on a GPU.
        parts: the extra that says what trains, where that is not all of the model at one rate.
        trains: how much of the model that is.
    """

    config: TrainConfig
    dataset: PackedDataset
    start: RunState
    checkpoint: Path | None
    evaluation: PackedDataset | None
    memory: Any = None
    parts: Any = None
    trains: Any = None
    damaged: Mapping[str, str] = field(default_factory=dict)

    @property
    def parameter_dtype(self) -> torch.dtype:
        """The dtype of parameters: AdamW's updates are too small for bfloat16 to represent."""
        return torch.float32 if self.config.dtype == "bfloat16" else DTYPES[self.config.dtype]

    @property
    def lora(self) -> Any:
        """The adapters that train, if any."""
        return None if self.parts is None else self.parts.lora

    def own_rates(self, model: Any) -> list[OwnRate]:
        """Parameters of the job's model with a learning rate of their own."""
        return [] if self.parts is None else self.parts.own_rates(model)

    def rank_invariants(self) -> dict[str, str]:
        """Facts that every rank must have found the same, by their names."""
        second = self.evaluation
        asked = [(option(name), value) for name, value in self.config if name not in OF_A_MACHINE]
        given = {name: "left out" if value in (None, ()) else str(value) for name, value in asked}
        return given | {
            "the dataset": str(self.start.data["dataset_id"]),
            "the dataset of --eval-data": "none" if second is None else str(second.state_dict()["dataset_id"]),
            "the newest checkpoint": "none" if self.checkpoint is None else self.checkpoint.name,
            "the checkpoint's position": f"epoch {self.start.data['epoch']}, pack {self.start.data['position']}",
        }


def prepare(
    config: TrainConfig,
    *,
    rank: int,
    world_size: int,
    device_type: str = "cpu",
    damaged: Mapping[str, str] | None = None,
) -> Job:
    """Opens the dataset as rank ``rank`` of ``world_size`` and checks that all parts of the run fit each other.

    Args:
        config: the settings.
        rank: this process.
        world_size: processes of the job.
        device_type: where they compute, ``cpu`` or ``cuda``.
        damaged: checkpoints that are passed over, each with what is wrong with it.

    Raises:
        PreshardError: they do not: the heads, ranks, packs or layouts do not allow a degree, the model cannot be
            trained on packs or not on these, or the checkpoint is of another run. Says what would fit.
    """
    dp_size = config.dp_replicate(world_size) * config.dp_shard
    dp_rank, cp_rank = divmod(rank, config.cp_size)
    dataset = open_dataset(config, config.datasets, cp_rank, dp_rank=dp_rank, dp_size=dp_size, seed=config.seed)
    if dataset.n_packs < dp_size * config.accumulate:
        raise ConfigError(
            f"a step takes {several(dp_size * config.accumulate, 'pack')}, --accumulate {config.accumulate} on each of "
            f"{several(dp_size, 'data-parallel rank')}; {' + '.join(config.data)} has only {dataset.n_packs}: lower "
            "--accumulate, or start fewer processes"
        )
    evaluation = None if config.eval_data is None else open_dataset(config, config.eval_data, cp_rank)
    for package in config.report_to:
        if find_spec(package) is None:
            raise ConfigError(
                f"--report-to is {package}, and the package {package} is not installed: pip install {package}, or "
                "leave the option out"
            )
    datasets = [dataset, *([evaluation] if evaluation is not None else [])]
    parts, described, trains = _check_parts(config)
    config, memory = _check_model(config, datasets, world_size=world_size, device_type=device_type, trains=trains)
    model = identity(config.model, with_weights=config.lora is not None)
    start = RunState(step=0, data=dataset.state_dict(), model=model, parts=described)
    checkpoint = _checkpoint(config, damaged or {})
    if (checkpoint is None or config.lora is not None) and not config.from_scratch:
        load_extra("model_check").check_weights(config.model)
    if checkpoint is not None:
        resumed = read_run_state(checkpoint)
        resumed.check_same_run(start, checkpoint)
        if resumed.step > config.steps:
            raise ConfigError(
                f"--steps is {config.steps}, and {checkpoint} is of a later step: give --steps {resumed.step} or more, "
                "or another --checkpoint folder"
            )
        dataset.load_state_dict(resumed.data)
        start = resumed
    return Job(
        config=config,
        dataset=dataset,
        start=start,
        checkpoint=checkpoint,
        evaluation=evaluation,
        memory=memory,
        parts=parts,
        trains=trains,
        damaged=damaged or {},
    )


def make_mesh(config: TrainConfig, world_size: int, device_type: str) -> Mesh:
    """The mesh of a job's processes, by its degrees."""
    return build_mesh(
        device_type,
        dp_replicate=config.dp_replicate(world_size),
        dp_shard=config.dp_shard,
        ring_degree=config.ring,
        ulysses_degree=config.ulysses,
        cp_fsdp=config.cp_fsdp,
    )


def open_dataset(config: TrainConfig, data: str | list[tuple[str, float]], cp_rank: int, **dealt: Any) -> PackedDataset:
    """A dataset, or several with weights, as a rank of a pack reads it; all packs, unless they are dealt."""
    part: Any = {"ulysses_degree": config.ulysses, "ring_degree": config.ring, "cp_rank": cp_rank}
    reads: Any = {name: getattr(config, name) for name in ("cache_dir", "cache_limit", "store_timeout")}
    return PackedDataset(data, layout=config.layout, **part, **reads, **dealt)


def _check_parts(config: TrainConfig) -> tuple[Any, dict[str, Any], Any]:
    """The extra that says what trains, what a checkpoint holds of it, and how much trains; nothing where all does."""
    if not (config.freeze or config.lora or config.lr_part):
        return None, {}, None
    extra = load_extra("parts")
    parts = extra.Parts.of(config)
    model = parts.apply(empty_model(config.model))
    return parts, parts.describe(model), extra.count_trains(model)


def _check_model(
    config: TrainConfig,
    datasets: Sequence[PackedDataset],
    *,
    world_size: int,
    device_type: str,
    trains: Any,
) -> tuple[TrainConfig, Any]:
    """Checks what the model folder says, before a weight is read, against the degrees, the device and the datasets.

    Returns the settings without ``auto``, and what a rank is estimated to hold.
    """
    model = read_model_config(config.model)
    sizes = model_sizes(model)
    check_heads(
        config.attention,
        sizes.num_heads,
        sizes.num_kv_heads,
        ulysses_degree=config.ulysses,
        ring_degree=config.ring,
        overlap=config.overlap,
        head_stride=config.head_stride,
    )
    if (states := load_states(model)) is not None:
        states.check_states(model, config.cp_size)
    for dataset in datasets:
        load_extra("model_check").check_dataset(model, dataset.files.manifest, dataset.files.config.seq_len)
    on_cuda, memory = device_type == "cuda", None
    given: dict[str, Any] = {"dtype": config.dtype, "compile": config.compile, "recompute": config.recompute}
    if config.dtype == "auto":
        given["dtype"] = "bfloat16" if on_cuda else "float32"
    if config.compile is None:
        given["compile"] = on_cuda
    if config.recompute == "auto" and not on_cuda:
        given["recompute"] = "none"
    config = config.model_copy(update=given)
    if on_cuda:
        config, memory = load_extra("memory_check").check_memory(
            config, model, datasets, world_size=world_size, trains=trains
        )
    check_kernel(device_type, DTYPES[config.dtype], min(sizes.head_dims + sizes.value_dims))
    if config.recompute != "none" or config.offload != "none":
        load_extra("saving").check_saving(config.recompute, config.offload, device_type)
    if config.export is not None:
        load_extra("outputs").check_export(config.export)
    if _asks_for_routers(config, model) and routers_weight(config, empty_model(config.model)) and config.loss == "dpo":
        raise ConfigError(
            "--loss is dpo, which has no auxiliary part for routers, and output_router_logits of config.json is true: "
            "give --router-aux-loss 0"
        )
    return config, memory


def _asks_for_routers(config: TrainConfig, settings: Any) -> bool:
    """Whether the option, or else the model's configuration, asks for the auxiliary loss of its routers."""
    if config.router_aux_loss is not None:
        return config.router_aux_loss > 0
    return bool(getattr(settings.get_text_config(), "output_router_logits", False))


def routers_weight(config: TrainConfig, model: Any) -> float:
    """Weight of the auxiliary loss of a model's routers; 0 for none.

    Raises:
        ConfigError: the option gives one, and ``transformers`` has no such loss for the model.
    """
    if _asks_for_routers(config, unwrap(model).config):
        return float(load_extra("router_loss").find_coefficient(model, config.router_aux_loss))
    return 0.0


def _checkpoint(config: TrainConfig, damaged: Mapping[str, str]) -> Path | None:
    """The checkpoint to resume from. With --resume a folder may hold none: the same command can then always be used."""
    if config.checkpoint is None:
        return None
    found = find_checkpoint(config.checkpoint, damaged)
    if found is None and damaged:
        name, fault = next(iter(damaged.items()))
        raise ConfigError(
            f"--checkpoint is {config.checkpoint}, which holds no sound checkpoint ({name}: {fault}); give another "
            "folder to start at step 1"
        )
    if found is not None and not config.resume:
        raise ConfigError(
            f"--checkpoint is {config.checkpoint}, which holds {found.name}; use --resume to continue from it, or "
            f"another folder to start over"
        )
    if found is None and config.checkpoint.exists() and not config.checkpoint.is_dir():
        raise ConfigError(f"--checkpoint is {config.checkpoint}, which is a file; name a folder")
    return found
