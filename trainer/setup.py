"""What a run will be, found out and checked on every rank before the first step."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from schemas.errors import ConfigError
from trainer.attention import check_heads
from trainer.config import TrainConfig, load_model_config
from trainer.data.dataset import PackedDataset
from trainer.distributed.checkpoint import RunState, find_checkpoint, read_run_state
from trainer.models.config import ModelConfig


@dataclass(frozen=True, kw_only=True)
class Job:
    """A run that can begin.

    Attributes:
        config: what was asked.
        model: the model's dimensions, those that the dataset decides among them.
        dataset: this rank's part, at the position where the run begins.
        dp_replicate: copies of the parameters.
        start: what the run begins from: step 0, or what the checkpoint says.
        checkpoint: the checkpoint to load, if any.
    """

    config: TrainConfig
    model: ModelConfig
    dataset: PackedDataset
    dp_replicate: int
    start: RunState
    checkpoint: Path | None

    @property
    def packs_per_step(self) -> int:
        """Packs of one optimiser step, over all ranks."""
        return self.dataset.dp_size * self.config.accumulate


def prepare(config: TrainConfig, *, rank: int, world_size: int) -> Job:
    """Opens the dataset as one rank of so many and checks that all parts of the run fit each other.

    Raises:
        PreshardError: they do not: a degree that heads, ranks, packs or layouts do not allow, a model of other sizes
            than the dataset's, a checkpoint of another run. Says what there is.
    """
    dp_size = config.dp_replicate(world_size) * config.dp_shard
    model = load_model_config(config.model)
    check_heads(
        config.attention,
        model.decoder.num_attention_heads,
        model.decoder.num_key_value_heads,
        ulysses_degree=config.ulysses,
        ring_degree=config.ring,
    )
    dp_rank, cp_rank = divmod(rank, config.cp_size)
    dataset = PackedDataset(
        config.data,
        dp_rank=dp_rank,
        dp_size=dp_size,
        ulysses_degree=config.ulysses,
        ring_degree=config.ring,
        cp_rank=cp_rank,
        layout=config.layout,
        seed=config.seed,
    )
    if dataset.n_packs < dp_size * config.accumulate:
        raise ConfigError(
            f"a step takes --accumulate {config.accumulate} packs on each of {dp_size} data-parallel ranks; "
            f"{config.data} has {dataset.n_packs} packs: accumulate fewer, or start fewer processes"
        )
    model = model.for_dataset(dataset.config.vision, dataset.files.manifest.tokenizer)
    begin = RunState(
        step=0,
        data=dataset.state_dict(),
        dataset_id=dataset.files.manifest.dataset_id,
        seed=config.seed,
        model=model.model_dump(mode="json"),
    )
    checkpoint = _checkpoint(config)
    start = begin
    if checkpoint is not None:
        start = read_run_state(checkpoint)
        start.check_same_run(begin, checkpoint)
        dataset.load_state_dict(start.data)
    return Job(
        config=config,
        model=model,
        dataset=dataset,
        dp_replicate=config.dp_replicate(world_size),
        start=start,
        checkpoint=checkpoint,
    )


def _checkpoint(config: TrainConfig) -> Path | None:
    """The checkpoint to go on from. A folder with none is where a job begins that is always started with --resume."""
    if config.checkpoint is None:
        return None
    found = find_checkpoint(config.checkpoint)
    if found is not None and not config.resume:
        raise ConfigError(
            f"--checkpoint is {config.checkpoint}, which holds {found.name}; give --resume to go on from it, or "
            f"another folder to begin anew"
        )
    if found is None and config.checkpoint.exists() and not config.checkpoint.is_dir():
        raise ConfigError(f"--checkpoint is {config.checkpoint}, which is a file; name a folder")
    return found
