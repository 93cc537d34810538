"""The settings of a training run, each with one line of documentation: options, checks and docs are made from them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, Self

import torch
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from preshard.schemas.errors import ConfigError
from preshard.schemas.files.printed import several
from preshard.schemas.model.savings import Offload, Recompute
from preshard.trainer.attention.bind import Kind
from preshard.trainer.core.mesh import CpFsdp
from preshard.trainer.extras import load_extra

DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}

Paths = Annotated[tuple[str, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given)]
"""Values of an option that may be given several times."""

Tracker = Literal["tensorboard", "wandb"]
"""Packages that show a run's figures."""

Gpu = Literal["a100", "h100", "h200", "b200", "l40s", "cpu"]
"""Kinds of devices that a dry run can count for: those of ``preshard.schemas.model.devices``."""

NEEDS = {
    **dict.fromkeys(("world", "pack", "cp_rank"), ("dry_run", "--dry-run, or leave it out")),
    **dict.fromkeys(
        ("resume", "save_every", "async_save"), ("checkpoint", "--checkpoint with the checkpoints' folder")
    ),
    **dict.fromkeys(("lora_alpha", "lora_targets", "keep_adapters"), ("lora", "--lora with a rank")),
    "cache_dir": ("cache_limit", "--cache-limit with the bytes that it may take"),
    "cache_limit": ("cache_dir", "--cache-dir with a folder on the node's disk"),
    "eval_every": ("eval_data", "--eval-data with a dataset"),
    "export_dtype": ("export", "--export with a new folder"),
    "report_to": ("report_dir", "--report-dir with a folder for its files"),
    "report_dir": ("report_to", "--report-to tensorboard or wandb"),
}
"""Options that mean nothing without another one: the other, and what to add."""

OF_A_MACHINE = ("data", "eval_data", "model", "cache_dir", "metrics", "report_dir", "profile", "checkpoint", "export")
"""Options that may differ between ranks: paths. What lies there must be the same, where all read it."""


class TrainConfig(BaseModel):
    """One run of ``preshard.train``. Each field is the option of the same name."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, protected_namespaces=())

    data: Paths = Field(
        min_length=1,
        description="The dataset's folder, a path or a URI; to mix several, PATH:WEIGHT for each.",
    )
    model: Path = Field(description="Model folder: config.json, and weights unless --from-scratch is given.")
    from_scratch: bool = Field(False, description="Start from random weights, which --seed determines.")
    steps: int = Field(ge=1, description="Optimiser steps in total, counting those before a resumed checkpoint.")
    ulysses: int = Field(1, ge=1, description="Ranks that share a pack by attention heads.")
    ring: int = Field(1, ge=1, description="Ranks that share a pack by the layout's slices.")
    dp_shard: int = Field(1, ge=1, description="Data-parallel ranks that share one replica of the parameters.")
    attention: Kind = Field(
        "gather", description="How ranks exchange keys and values; the result does not depend on it."
    )
    overlap: bool = Field(
        False,
        description="With attention ulysses or gather: exchange half of the heads, or --head-stride of them, while "
        "computing others.",
    )
    head_stride: int = Field(
        0,
        ge=0,
        description="With attention gather: key heads of a rank that are gathered at a time, to save memory; 0 is all.",
    )
    cp_fsdp: CpFsdp = Field(
        "all", description="Which of the axes ring and ulysses shard the parameters; the others hold full copies."
    )
    layout: str = Field("contiguous", description="The token layout, one of those that the dataset holds.")
    dtype: Literal["auto", "float32", "float64", "bfloat16"] = Field(
        "auto",
        description="Compute dtype; auto is bfloat16 on CUDA, with parameters and gradient sums in float32, and "
        "float32 on a CPU.",
    )
    recompute: Literal["auto", Recompute] = Field(
        "auto",
        description="What the backward pass recomputes to save memory: every block (full), or all but its attention "
        "(selective); auto is the least that is estimated to fit on CUDA, and none on a CPU.",
    )
    memory_check: Literal["on", "off"] = Field(
        "on", description="Stop before loading anything if the memory estimate does not fit on the GPU."
    )
    offload: Offload = Field(
        "none",
        description="What leaves the device: the inputs of recomputed blocks, to host memory (host) or a file (disk); "
        "parameters, gradients and optimiser state, to host memory (state); or both (all).",
    )
    mlp_tiles: int = Field(1, ge=1, description="Parts into which the language model's MLPs divide a rank's tokens.")
    compile: bool | None = Field(
        None,
        description="Fuse what lies between two attentions in the language model's blocks with torch.compile; by "
        "default on CUDA alone.",
    )
    logits_mib: int = Field(1024, ge=1, description="Memory for logits at any one time, in MiB.")
    accumulate: int = Field(1, ge=1, description="Packs per data-parallel rank and optimiser step.")
    lr: float | None = Field(
        None, gt=0, description="Peak learning rate; by default 1e-5, or 1e-3 with --from-scratch."
    )
    min_lr: float = Field(0.1, ge=0, le=1, description="Learning rate of the last step, as a fraction of the peak.")
    warmup: int = Field(10, ge=0, description="Steps over which the learning rate rises to its peak.")
    weight_decay: float = Field(0.1, ge=0, description="Weight decay of matrices; none for vectors and embeddings.")
    clip: float = Field(1.0, ge=0, description="Gradient norm above which gradients are scaled down; 0 is never.")
    loss: Literal["next_token", "dpo"] = Field(
        "next_token", description="What is learnt: the next token, or to prefer chosen to rejected answers."
    )
    beta: float | None = Field(
        None, gt=0, description="With --loss dpo: how much a margin over the first model counts; 0.1 by default."
    )
    router_aux_loss: float | None = Field(
        None,
        ge=0,
        description="Weight of the auxiliary loss by which routers of a mixture of experts spread tokens evenly; by "
        "default router_aux_loss_coef of config.json if output_router_logits is true there, else 0.",
    )
    freeze: Paths = Field(
        (),
        description="What is not trained: vision, language, or part of parameters' names, such as visual.merger or "
        "layers.0; may be given several times.",
    )
    lora: int | None = Field(None, ge=1, description="Train adapters of this rank instead of the model, through peft.")
    lora_alpha: int | None = Field(
        None, ge=1, description="Adapters' output is multiplied by this over their rank; by default twice the rank."
    )
    lora_targets: Paths = Field(
        (),
        description="Which linear layers get adapters, named as for --freeze, by default those of the language model; "
        "may be given several times.",
    )
    lr_part: Paths = Field(
        (),
        description="PART=LR: a peak learning rate of its own for a part, named as for --freeze; if several name "
        "a parameter, the last counts.",
    )
    seed: int = Field(
        0, ge=0, description="Seed of random weights, of dropout and other noise, and of the order of packs."
    )
    workers: int = Field(0, ge=0, description="Processes per rank that read ahead; 0 reads between steps.")
    cache_dir: Path | None = Field(
        None, description="Folder on the node's disk where its processes keep what they read, across epochs and runs."
    )
    cache_limit: str | None = Field(None, description="Bytes that --cache-dir may take, such as 500GB.")
    store_timeout: float | None = Field(
        None, gt=0, description="Seconds after which a store that fails or hangs ends the run; by default 120."
    )
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="Where to compute; auto is CUDA if there is a device."
    )
    metrics: Path | None = Field(None, description="File for one JSON object per step, written by rank 0.")
    report_to: tuple[Tracker, ...] = Field(
        (), description="What else gets each step's figures: tensorboard or wandb; may be given several times."
    )
    report_dir: Path | None = Field(None, description="Folder for the files of --report-to, written by rank 0.")
    profile: Path | None = Field(None, description="Folder for each rank's trace of steps 4 to 6, by torch.profiler.")
    eval_data: str | None = Field(None, description="Dataset to evaluate on.")
    eval_every: int | None = Field(
        None, ge=1, description="Steps between evaluations; --eval-data always evaluates after the last step."
    )
    log_every: int = Field(
        10, ge=1, description="Steps between printed lines; the first and last step are always printed."
    )
    checkpoint: Path | None = Field(None, description="Folder for checkpoints, visible to all ranks.")
    save_every: int | None = Field(
        None, ge=1, description="Steps between checkpoints; the last step always writes one."
    )
    async_save: bool = Field(False, description="Write checkpoints in the background.")
    keep: int = Field(2, ge=1, description="Checkpoints to keep; older ones are removed.")
    resume: bool = Field(False, description="Continue from the newest checkpoint in the folder.")
    export: Path | None = Field(None, description="New folder for the trained model, which from_pretrained can load.")
    keep_adapters: bool = Field(
        False, description="Export the adapters of --lora alone, as peft loads them, instead of merging them."
    )

    export_dtype: Literal["float32", "bfloat16"] | None = Field(
        None, description="Dtype of the exported parameters, bfloat16 or float32; by default that of training."
    )

    dry_run: bool = Field(
        False, description="Count what a step of one rank would hold, send and wait for, on a GPU that need not exist."
    )
    world: int | None = Field(
        None,
        ge=1,
        description="With --dry-run: processes of the job; by default those of one replica of the parameters.",
    )
    gpu: Gpu = Field("h100", description="With --dry-run: the kind of device.")
    cp_rank: int | None = Field(
        None,
        ge=0,
        description="With --dry-run: which of a pack's ranks; by default the one with most images, then keys.",
    )
    pack: int | None = Field(None, ge=0, description="With --dry-run: the pack; by default the one with most patches.")

    @model_validator(mode="after")
    def _options_that_others_need_are_given(self) -> Self:
        for name, (needed, remedy) in NEEDS.items():
            if getattr(self, name) and not getattr(self, needed):
                raise ValueError(f"{option(name)} is given without {option(needed)}; add {remedy}")
        if self.cp_rank is not None and self.cp_rank >= self.cp_size:
            raise ValueError(
                f"--cp-rank is {self.cp_rank}; --ring {self.ring} x --ulysses {self.ulysses} ranks share a pack: take "
                f"0 to {self.cp_size - 1}"
            )
        return self

    @model_validator(mode="after")
    def _adapters_alone_train(self) -> Self:
        if self.lora and self.freeze:
            raise ValueError("--freeze is given with --lora, which freezes the whole model: leave it out")
        if self.lora and self.from_scratch:
            raise ValueError(
                "--lora is given with --from-scratch: adapters need a trained model, leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _preferences_have_their_own_options(self) -> Self:
        if self.beta is not None and self.loss != "dpo":
            raise ValueError("--beta is given without --loss dpo; add it, or leave --beta out")
        if self.dry_run and self.loss == "dpo":
            raise ValueError("--dry-run is given with --loss dpo, which it does not count yet; leave one of them out")
        if self.router_aux_loss and self.loss == "dpo":
            raise ValueError("--router-aux-loss is given with --loss dpo, which has no auxiliary part; leave it out")
        if self.router_aux_loss and self.dry_run:
            raise ValueError("--router-aux-loss is given with --dry-run, which does not count it yet; leave it out")
        return self

    @model_validator(mode="after")
    def _mixed_datasets_have_weights(self) -> Self:
        for text in self.data if len(self.data) > 1 else ():
            if parse_weighted(text)[1] is None:
                raise ValueError(
                    f"--data is given {len(self.data)} times, and {text} has no weight; write --data {text}:WEIGHT"
                )
        return self

    @property
    def datasets(self) -> list[tuple[str, float]]:
        """Paths and weights of the datasets; the weight of a single one has no effect."""
        given = [parse_weighted(text) for text in self.data]
        return [(path, 1.0 if weight is None else weight) for path, weight in given]

    @property
    def largest_lr(self) -> float:
        """The largest learning rate: by default one for going on from trained weights, or from random ones."""
        return self.lr if self.lr is not None else 1e-3 if self.from_scratch else 1e-5

    @property
    def cp_size(self) -> int:
        """Ranks that share a pack."""
        return self.ulysses * self.ring

    def dp_replicate(self, world_size: int) -> int:
        """Replicas of the parameters on this number of ranks.

        Raises:
            ConfigError: it is not a multiple of the ranks of one replica.
        """
        replica = self.dp_shard * self.cp_size
        if world_size % replica:
            raise ConfigError(
                f"{several(world_size, 'process')} cannot be divided by --dp-shard {self.dp_shard} x --ring "
                f"{self.ring} x --ulysses {self.ulysses} = {replica}; start a multiple of {replica}, or change the "
                "degrees"
            )
        return world_size // replica


def option(field: str) -> str:
    """A field's option on the command line."""
    return f"--{field.replace('_', '-')}"


def make_config(values: dict[str, object]) -> TrainConfig:
    """A configuration from the given options.

    Raises:
        ConfigError: a value is not legal; one line, which names the option.
    """
    try:
        return TrainConfig.model_validate(values)
    except ValidationError as error:
        raise ConfigError(load_extra("wording").problem_of(error, option)) from None


def parse_weighted(text: str) -> tuple[str, float | None]:
    """Splits ``PATH:WEIGHT`` at its last colon, if a number follows it: paths may have colons of their own.

    ``s3://bucket/a:0.7`` is the path ``s3://bucket/a``; ``C:/data`` has no weight. A path that itself ends in a colon
    and a number needs a weight behind it.
    """
    found = re.fullmatch(r"(.+):([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+)", text)
    return (found[1], float(found[2])) if found is not None else (text, None)
