"""Figures of a run's steps, as JSON Lines and for trackers; each rank's work; a profile."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule

from preshard.schemas.errors import ConfigError
from preshard.schemas.layout import TILE
from preshard.schemas.model.families import language_model
from preshard.trainer.attention.listed import count_tiles
from preshard.trainer.attention.mask import Groups
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.models.folder import model_sizes
from preshard.trainer.models.interface import decoder_layers
from preshard.trainer.models.named import encoder_trains


@dataclass(frozen=True, kw_only=True, slots=True)
class StepFigures:
    """One optimiser step over all ranks. Except for the times, nothing depends on how many ranks share the work.

    Attributes:
        step: number of the step, from 1.
        loss: sum of weight x cross entropy over all tokens by the sum of weights. None if no token has a weight.
        grad_norm: norm of the gradient of ``loss``, before clipping. None if ``loss`` is.
        tokens: tokens without padding.
        loss_weight: sum of the loss weights.
        step_time: seconds that the step took on this rank.
        data_time: seconds of it that the slowest rank waited for its packs.
        bytes_read: bytes that all ranks together asked from shards.
        lr: learning rate.
        epoch: epoch of the packs, from 0.
        packs: ids of the packs, in the order of the epoch.
        tokens_per_second: ``tokens`` by ``step_time``.
        tflops: work of the step in 10^12 operations per second and process (see :mod:`preshard.trainer.core.metrics`).
        mfu: ``tflops`` by those that the device can do. None if nobody said how many.
        predicted_work: of each rank, in 10^12 operations.
        compute_times: processor seconds of each rank's forward and backward passes. Empty on CUDA, where
            waiting for other ranks counts as computing: a profile shows it.
        predicted_imbalance: the largest of ``predicted_work`` by their mean. None if there is no work.
        measured_imbalance: the same of ``compute_times``.
        eval_loss: mean loss on the second dataset, in steps after which it is taken.
        rewards: with ``--loss dpo`` means over all pairs, by :data:`preshard.trainer.extra.preferences.REWARDS`.
        eval_rewards: the same on the second dataset, in steps after which it is taken.
        eval_stopped: whether a signal cut that short. Files have no such figure.
    """

    step: int
    loss: float | None
    grad_norm: float | None
    tokens: int
    loss_weight: float
    step_time: float
    data_time: float
    bytes_read: int
    lr: float
    epoch: int
    packs: list[int]
    tokens_per_second: float
    tflops: float
    mfu: float | None
    predicted_work: list[float]
    compute_times: list[float]
    predicted_imbalance: float | None
    measured_imbalance: float | None
    eval_loss: float | None = None
    rewards: dict[str, float] | None = None
    eval_rewards: dict[str, float] | None = None
    eval_stopped: bool = False

    def named(self) -> dict[str, Any]:
        """The figures by the names that files have for them: rewards are TRL's ``rewards/chosen`` and so on."""
        found = asdict(self)
        del found["eval_stopped"]
        for kind in ("rewards", "eval_rewards"):
            found |= {f"{kind}/{name}": value for name, value in (found.pop(kind) or {}).items()}
        return found


class MetricsFile:
    """A file of JSON Lines with one line per step, however often the run was stopped and resumed.

    Args:
        path: the file. Its folder is created if missing.
        after: the step after which the run continues. Lines up to it are kept; later ones belong to steps that will be
            done again. With 0 the file starts empty.
    """

    def __init__(self, path: Path, *, after: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        # a killed process can leave half of a line
        lines = path.read_text(encoding="utf-8").split("\n")[:-1] if after and path.exists() else []
        kept = [line for line in lines if json.loads(line)["step"] <= after]
        whole = path.with_name(f"{path.name}.tmp")
        whole.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")
        whole.replace(path)
        self._path = path
        self._file: TextIO = path.open("a", encoding="utf-8")

    def write(self, figures: StepFigures) -> None:
        """Appends a step. It is in the file when this returns, even if the process is killed next.

        Raises:
            OSError: it cannot be written; names the file.
        """
        try:
            self._file.write(json.dumps(figures.named()) + "\n")
            self._file.flush()
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._path)) from None

    def close(self) -> None:
        self._file.close()


class TensorBoardFiles:
    """The same figures for TensorBoard: one curve for each that is a number.

    Args:
        folder: created if missing.
        after: the step after which the run continues; what was written of later ones is not shown.
    """

    def __init__(self, folder: Path, *, after: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder, purge_step=after + 1)

    def write(self, figures: StepFigures) -> None:
        for name, value in _numbers(figures).items():
            self._writer.add_scalar(name, value, figures.step)

    def close(self) -> None:
        self._writer.close()


WANDB_RUN = "wandb-run"
"""File of a folder with the id of the run that is reported from there."""


class WandbRun:
    """The same figures as a run of Weights & Biases, which the package's own variables name (``WANDB_PROJECT`` ...).

    Args:
        folder: for the package's files; created if missing. It remembers the run, which a resumed one continues.
        after: the step after which the run continues; with 0 it is a new one. Steps that are done again are not
            reported again.
        config: settings to show beside the run.

    Raises:
        ConfigError: the package does not start a run, as where nobody has logged in.
    """

    def __init__(self, folder: Path, *, after: int, config: Mapping[str, Any] | None = None) -> None:
        wandb: Any = import_module("wandb")
        folder.mkdir(parents=True, exist_ok=True)
        remembered = folder / WANDB_RUN
        if not after or not remembered.exists():
            remembered.write_text(uuid4().hex, encoding="utf-8")
        known = remembered.read_text(encoding="utf-8").strip()
        try:
            self._run: Any = wandb.init(dir=str(folder), id=known, resume="allow", config=dict(config or {}))
        except Exception as error:  # each of its errors has a class of its own
            raise ConfigError(
                f"--report-to wandb: it starts no run ({' '.join(str(error).split())[:200]}); run wandb login, or set "
                "WANDB_MODE=offline"
            ) from None

    def write(self, figures: StepFigures) -> None:
        self._run.log(_numbers(figures), step=figures.step, commit=True)

    def close(self) -> None:
        self._run.finish()


def _numbers(figures: StepFigures) -> dict[str, int | float]:
    """The figures that are a number each."""
    named = figures.named().items()
    return {name: value for name, value in named if isinstance(value, int | float) and name != "step"}


SKIPPED, WARMED_UP, RECORDED = 2, 1, 3
"""Steps before the profiler starts, steps that it runs without keeping them, and steps of the trace.

The first steps allocate memory and compile kernels, which later ones do not.
"""


@contextmanager
def profiled(folder: Path | None) -> Iterator[profile | None]:
    """Profiles a run; call ``step()`` of what it gives after each step. Without a folder there is nothing.

    Each rank writes ``rank-N.json`` into the folder, which ``chrome://tracing`` and Perfetto open.
    """
    if folder is None:
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]

    def write(found: profile) -> None:
        found.export_chrome_trace(str(folder / f"rank-{dist.get_rank()}.json"))

    with profile(
        activities=activities,
        schedule=schedule(wait=SKIPPED, warmup=WARMED_UP, active=RECORDED, repeat=1),
        on_trace_ready=write,
    ) as profiler:
        yield profiler


TRAINING, FROZEN, FORWARD = 3, 2, 1
"""A backward pass takes two products where the forward pass takes one, and with a frozen weight one, for the gradient
of what is before it; a frozen encoder takes none. What is computed again is not counted."""


EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
USED_EXPERTS = ("num_experts_per_tok", "moe_topk", "moe_k", "top_k_experts", "num_experts_per_token")
"""Names of the number of a layer's experts, and of those that a token is sent to; some models list them by layer."""

STATE = "linear_attention"
"""Kind of layers that carry a state, and have no scores."""

RULE_CHUNK = 64
"""Tokens of a chunk of the gated delta rule, in ``transformers`` and in the package ``fla``."""


@dataclass(frozen=True, kw_only=True)
class StepWork:
    """Work of a model's training step, one multiplication and addition being two operations.

    As in the costs of ``packs.parquet``: products with weights for each token, attention in whole tiles of 128 x 128,
    and the vision encoder by the loads of its units (Chowdhery et al. 2022, PaLM, appendix B).

    Attributes:
        per_token: operations of the language model's weights, of which a token passes only some experts.
        per_tile: operations of one tile over all layers and query heads.
        vision: passes of the encoder.
        windows: of each layer; empty if no layer has one.
        groups: in which layers bidirectional groups hold.
    """

    per_token: float
    per_tile: float
    vision: int = TRAINING
    windows: tuple[int | None, ...] = ()
    groups: Groups = "all"

    @classmethod
    def of(cls, model: nn.Module) -> StepWork:
        """The work of a model from ``load_model``, before it is sharded."""
        hugging_face: Any = model
        text = hugging_face.config.get_text_config()
        sizes = model_sizes(hugging_face.config)
        kinds = getattr(text, "layer_types", None) or [""] * len(sizes.head_dims)
        widths = [width for width, kind in zip(sizes.head_dims, kinds, strict=True) if kind != STATE]
        attended = sizes.num_heads * sum(widths) * language_model(text.model_type).attentions
        products = sum(
            parameter.numel() * share * (TRAINING if parameter.requires_grad else FROZEN)
            for parameter, share in [
                *((each, _share(name, each, text)) for name, each in decoder_layers(hugging_face).named_parameters()),
                (hugging_face.get_output_embeddings().weight, 1.0),
            ]
        )
        return cls(
            per_token=2 * (products + TRAINING * kinds.count(STATE) * _rule_products(text)),
            per_tile=TRAINING * 2 * 2 * TILE * TILE * attended,
            vision=TRAINING if encoder_trains(hugging_face) else FORWARD,
            windows=sizes.windows,
            groups=sizes.groups,
        )

    def of_rank(self, batch: RankBatch) -> float:
        """The work of one rank's part of a pack. Only what lies on the CPU is read."""
        tiles = batch.tiles.n_tiles if batch.tiles is not None else count_tiles(batch, self.windows, self.groups)
        tokens = int((batch.doc_ids[batch.positions] >= 0).sum())
        vision = self.vision * 2 * sum(unit.load for unit in batch.units)
        return self.per_token * tokens + self.per_tile * tiles + vision


def _share(name: str, parameter: nn.Parameter, text: Any) -> float:
    """The share of a block's parameter that a token is multiplied with: of experts, whose weights lie side by side or
    in a list, those that it is sent to.
    """
    if parameter.ndim < 2 or name.endswith("bias"):
        return 0.0
    layer = int(name.partition(".")[0])
    experts, used = (_of_layer(text, names, layer) for names in (EXPERTS, USED_EXPERTS))
    side_by_side = parameter.ndim == 3 and parameter.shape[0] == experts and parameter.shape[1] > 1
    return used / experts if side_by_side or re.search(r"\.experts\.\d+\.", name) else 1.0


def _of_layer(text: Any, names: Sequence[str], layer: int) -> int:
    """A setting that has one of several names, for a layer; 1 if it is left out."""
    found = next((value for name in names if (value := getattr(text, name, None))), 1)
    return int(found[layer] if isinstance(found, list | tuple) else found)


def _rule_products(text: Any) -> int:
    """Multiplications of one token in a layer's gated delta rule, which takes tokens in chunks (Yang et al. 2024). As
    in torch's own count, solving a chunk's triangular system is none.
    """
    if not hasattr(text, "linear_num_value_heads"):
        return 0
    key, value = text.linear_key_head_dim, text.linear_value_head_dim
    return int(text.linear_num_value_heads * (RULE_CHUNK * (2 * key + value) + 3 * key * value))


def imbalance(of_ranks: list[float]) -> float | None:
    """The largest share over the mean one; None if there is no work."""
    mean = sum(of_ranks) / len(of_ranks)
    return max(of_ranks) / mean if mean > 0 else None
