"""Packs in the trainers of Hugging Face: ``transformers.Trainer``, TRL's ``SFTTrainer``, and loops around accelerate.

The model stays the ``PreTrainedModel`` that it is, so saving it, ``peft``, callbacks and wrappers work as ever; only
its ``forward`` takes a rank's part of a pack. What the trainers would do to batches of their own (sampling, collating,
sharding among processes, counting labels) is taken over by :class:`OnPacks`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, Sampler

from preshard.schemas.errors import ConfigError
from preshard.schemas.sequence import PADDING_DOC
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.attention.listed import TileLister
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.data.loader import loading, prepare
from preshard.trainer.device import to_device
from preshard.trainer.extras import load_extra
from preshard.trainer.integrations.arguments import check_arguments, check_given, check_kind
from preshard.trainer.models.interface import feature_parameters, unwrap
from preshard.trainer.models.loss import LOGITS_BYTES
from preshard.trainer.models.packed import PackedModel, check_adapters

POSITIONAL = ("model", "args", "data_collator", "train_dataset", "eval_dataset", "processing_class")
"""Arguments that trainers take in this order; nobody gives later ones without their names."""

ROUTERS = "router_aux_loss_coef"
"""TRL's argument for the weight of the auxiliary loss of mixtures of experts."""

TAKES = "takes_packs"
"""The attribute under which a model holds how it takes packs."""

BESIDE = ("inputs_embeds", "past_key_values", "attention_mask", "labels")
"""Arguments of a model's call that would change what a pack says."""


@dataclass(frozen=True, kw_only=True)
class TakesPacks:
    """Setup of a model that takes packs.

    Attributes:
        cp: this rank's place among the ranks of a pack.
        attention: the kind.
        packed: what computes the loss.
        forward: what the model's ``forward`` calls.
    """

    cp: ContextParallel
    attention: str
    packed: PackedModel
    forward: Callable[..., Any]


def take_packs(
    model: Any,
    cp: ContextParallel,
    *,
    attention: str = "gather",
    overlap: bool = False,
    head_stride: int = 0,
    logits_bytes: int = LOGITS_BYTES,
    router_aux_loss: float | None = None,
) -> Any:
    """Gives a model a ``forward`` that takes this rank's part of a pack.

    It is called as ``model(batch=..., num_items_in_batch=...)`` by all ranks of a pack together. Its output's ``loss``
    is this rank's sum of loss weight x cross entropy over ``num_items_in_batch``, which is the pack's own sum of loss
    weights where it is left out: the ranks' losses add up to the mean. ``del model.forward`` undoes it.

    Args:
        model: from :func:`preshard.models.load_model`, or such a model with adapters of ``peft``.
        cp: this rank's place among the ranks of the pack.
        attention: one of ``preshard.attention.KINDS``.
        overlap, head_stride: see ``PackedModel``.
        logits_bytes: see ``PackedModel``.
        router_aux_loss: weight of the auxiliary loss of a mixture of experts; by default what the model's configuration
            says at each call, ``router_aux_loss_coef`` where ``output_router_logits`` is true.

    Returns:
        The same model.

    Raises:
        ConfigError: the model does not ask for the attention of packs, is of no supported kind, or has adapters that
            packs do not follow.
    """
    base = unwrap(model)
    check_adapters(model)
    routers = load_extra("router_loss")
    routers.find_coefficient(base, router_aux_loss, "router_aux_loss")
    packed = PackedModel(base, logits_bytes=logits_bytes)

    def forward(
        self: nn.Module,  # noqa: ARG001 (accelerate binds it to the model again)
        batch: RankBatch | None = None,
        num_items_in_batch: Float[Tensor, ""] | float | None = None,
        **more: Any,
    ) -> Any:
        from transformers.modeling_outputs import CausalLMOutput

        if name := next((name for name in BESIDE if more.get(name) is not None), None):
            raise ConfigError(f"the model takes packs, and is called with {name} beside one: leave it out")
        if batch is None:
            raise ConfigError(
                "the model takes packs: call it with batch=, a RankBatch, or undo that: del model.forward"
            )
        weight = batch.total_loss_weight or 1.0 if num_items_in_batch is None else num_items_in_batch
        how: Any = {"attention": attention, "overlap": overlap, "head_stride": head_stride}
        coefficient = routers.find_coefficient(base, router_aux_loss)
        return CausalLMOutput(loss=routers.loss_with_routers(packed, batch, cp, coefficient, **how) / weight)

    setattr(base, TAKES, TakesPacks(cp=cp, attention=attention, packed=packed, forward=forward))
    base.forward = MethodType(forward, base)
    return model


class OnPacks:
    """Makes a trainer of Hugging Face train on packs: ``class PackTrainer(OnPacks, Trainer)``, or ``SFTTrainer``.

    ``train_dataset`` and ``eval_dataset`` are ``PackedDataset``s of this rank, the model comes from :func:`take_packs`.
    Their context parallelism stays off, as ours is inside the model. Steps, epochs, gradient accumulation, checkpoints
    and resuming are the trainer's: an epoch has as many batches as the dataset has steps, in its order, and a resumed
    run reads none of those that it skips. The loss, also that of an evaluation, is the mean over all tokens of all
    ranks and micro-batches by their weights.

    Raises:
        ConfigError: a dataset is not packed, or is split in another way than the ranks are; the model takes no packs;
            or an argument means batches of the trainer's own (messages name it).
    """

    args: Any
    model: Any
    model_wrapped: Any
    accelerator: Any
    train_dataset: Any
    eval_dataset: Any
    add_callback: Callable[[Any], None]
    _units: Tensor | int

    def __init__(self, *given: Any, **more: Any) -> None:
        check_kind(type(self))
        named = {**dict(zip(POSITIONAL, given, strict=False)), **more}
        check_given(named)
        args = named.get("args")
        if args is not None:  # before TRL writes what it makes of them into the model's config
            check_arguments(args)
        stand_in = _stand_in(type(self), args)
        datasets = {name: named.get(name) for name in ("train_dataset", "eval_dataset")}
        shown = {name: each if stand_in is None or each is None else stand_in for name, each in datasets.items()}
        super().__init__(*given[:3], **{**dict(zip(POSITIONAL[3:], given[3:], strict=False)), **more, **shown})
        self.train_dataset, self.eval_dataset = datasets["train_dataset"], datasets["eval_dataset"]
        base = unwrap(self.model)
        check_adapters(self.model)
        takes = getattr(base, TAKES, None)
        if takes is None:
            raise ConfigError("model takes no packs: give preshard.hugging_face.take_packs(load_model(...), cp)")
        base.forward = MethodType(takes.forward, base)  # SFTTrainer has put its own in this place
        self._takes: TakesPacks = takes
        check_arguments(self.args)
        if coefficient := getattr(self.args, ROUTERS, None):  # TRL has written it into the config, and 0, too
            load_extra("router_loss").find_coefficient(base, coefficient, ROUTERS)
        self._check_ranks()
        self._units = 0
        self.add_callback(_before_updates(self._leave_encoder))

    def _check_ranks(self) -> None:
        config = getattr(self.accelerator, "parallelism_config", None)
        if config is not None and (config.cp_enabled or config.sp_enabled or config.tp_enabled):
            raise ConfigError(
                "parallelism_config has cp_size, sp_size or tp_size above 1, which would cut packs a second time: "
                "leave them at 1, and give take_packs the ranks that share a pack"
            )
        sharding = getattr(self.accelerator.state, "fsdp_plugin", None)
        if sharding is not None and sharding.fsdp_version != 2:
            raise ConfigError("fsdp_config has version 1, which shards no parts of a model by their own: set it to 2")
        if self.args.n_gpu > 1:
            raise ConfigError(
                f"one process has {self.args.n_gpu} GPUs, and packs are not split so: start it with torchrun"
            )

    def get_train_dataloader(self) -> DataLoader[Any]:
        """Batches of this rank alone, which no one shards again."""
        return self._loader(self.train_dataset, "train_dataset")

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """The same of ``eval_dataset``, or of one of several by its name."""
        found = self.eval_dataset[eval_dataset] if isinstance(eval_dataset, str) else eval_dataset
        return self._loader(self.eval_dataset if found is None else found, "eval_dataset")

    def _loader(self, dataset: Any, name: str) -> DataLoader[Any]:
        if not isinstance(dataset, PackedDataset):
            raise ConfigError(f"{name} is a {type(dataset).__name__}: give a preshard.data.PackedDataset of this rank")
        cp, ranks = self._takes.cp, self.accelerator.num_processes
        split = dataset.split
        ours = (cp.ulysses_degree, cp.ring_degree, cp.cp_rank, ranks // cp.cp_size)
        theirs = (split.cp_size // split.ring_degree, split.ring_degree, dataset.cp_rank, dataset.dp_size)
        if ours != theirs:
            names = ("ulysses_degree", "ring_degree", "cp_rank", "dp_size")
            wrong = next(i for i in range(len(names)) if ours[i] != theirs[i])
            raise ConfigError(
                f"{name} was opened with {names[wrong]} {theirs[wrong]}, while this rank of {ranks} has {ours[wrong]}: "
                f"open it with {names[wrong]}={ours[wrong]}"
            )
        device = self.args.device
        tiles = TileLister.of(
            self._takes.attention,
            cp,
            exchange="needed",
            device_type=device.type,
            windows=self._takes.packed.windows,
            groups=self._takes.packed.groups,
        )
        return _StepLoader(
            _Steps(dataset, tiles),
            batch_sampler=_StepSampler(dataset.steps_per_epoch),
            collate_fn=_inputs,
            **self._loading(device),
        )

    def _loading(self, device: torch.device) -> dict[str, Any]:
        """Keyword arguments of the loader: as ours, but for what the arguments say."""
        args = self.args
        found = loading(args.dataloader_num_workers, device)
        found["pin_memory"] &= args.dataloader_pin_memory
        names = ("persistent_workers", "prefetch_factor", "multiprocessing_context", "in_order")
        said = {name: getattr(args, f"dataloader_{name}", None) for name in names}
        return found | {name: value for name, value in said.items() if value is not None}

    def _get_num_items_in_batch(self, batch_samples: list[Any], device: torch.device) -> Float64[Tensor, ""]:
        """The loss weights of all ranks' packs of a step, in place of a count of labels."""
        batches: list[RankBatch] = [sample["batch"] for sample in batch_samples]
        mine = [sum(float(batch.loss_weights.double().sum()) for batch in batches), sum(len(b.units) for b in batches)]
        total, self._units = self.accelerator.gather(to_device(torch.tensor([mine], dtype=torch.float64), device)).sum(
            0
        )
        return torch.where(total > 0, total, 1.0)

    def _leave_encoder(self) -> None:
        """Takes the encoder out of a step without images, whose gradients are zeros: decay would shrink it."""
        if not self._units:
            for parameter in feature_parameters(unwrap(self.model)):
                parameter.grad = None

    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The model moves the batch itself. Trainers count ``input_ids`` where they compute."""
        return {**inputs, "input_ids": to_device(inputs["input_ids"], self.args.device)}

    def compute_loss(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Float64[Tensor, ""] | None = None,
    ) -> Any:
        """This rank's loss, times the number of ranks: trainers take the mean of what ranks compute."""
        outputs = model(batch=inputs["batch"], num_items_in_batch=num_items_in_batch)
        loss = outputs.loss * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,  # noqa: ARG002 (the trainer's interface)
        prediction_loss_only: bool | None = None,  # noqa: ARG002
        ignore_keys: list[str] | None = None,  # noqa: ARG002
        metric_key_prefix: str = "eval",
    ) -> Any:
        """The mean loss over all tokens of a dataset by their weights."""
        from transformers.trainer_utils import EvalLoopOutput

        self.model_wrapped.eval()
        sums = torch.zeros(2, dtype=torch.float64, device=self.args.device)
        with torch.no_grad():
            for inputs in dataloader:
                loss_sum = self.model_wrapped(batch=inputs["batch"], num_items_in_batch=1.0).loss
                weight = to_device(inputs["batch"].loss_weights.double().sum(), sums.device)
                sums += torch.stack([loss_sum.double(), weight])
        loss_sum, weight = self.accelerator.gather(sums[None]).sum(0).tolist()
        n_packs = len(dataloader) * self.accelerator.num_processes // self._takes.cp.cp_size
        metrics = {f"{metric_key_prefix}_loss": loss_sum / weight if weight else 0.0}
        return EvalLoopOutput(predictions=None, label_ids=None, metrics=metrics, num_samples=n_packs)

    def _save(self, output_dir: str | None = None, state_dict: dict[str, Tensor] | None = None) -> None:
        """Saves the layers that the model's folder has and ``transformers`` does not load, too. The trainer calls this
        for its checkpoints and for ``save_model``, with whole weights where they are sharded.
        """
        base, further = unwrap(self.model), dict[str, Tensor]()
        source = Path(base.name_or_path)
        if self.model is base and self.args.should_save and source.is_dir():
            further, left_out = load_extra("further").further_layers(base, source)
            if left_out:
                warnings.warn(f"{output_dir or self.args.output_dir} has no {left_out}", stacklevel=2)
        if further:
            state_dict = (base.state_dict() if state_dict is None else state_dict) | further
        super()._save(output_dir, state_dict=state_dict)  # type: ignore[misc]

    def predict(self, *_: Any, **__: Any) -> Any:
        """Refuses to predict: packs have no logits.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("predict needs logits, which packs do not keep: load the saved model with from_pretrained")


def _before_updates(act: Callable[[], None]) -> Any:
    """A trainer's callback that does something before each of the optimiser's steps."""
    from transformers import TrainerCallback

    class BeforeUpdates(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            act()

    return BeforeUpdates()


def _stand_in(kind: type, args: Any) -> Any:
    """One row for trainers that look at the dataset before they train, such as TRL's; None for others."""
    if not any(base.__module__.startswith("trl.") for base in kind.__mro__):
        return None
    if args is not None:
        args.dataset_kwargs = {**(args.dataset_kwargs or {}), "skip_prepare_dataset": True}
    # TRL brings the package
    return import_module("datasets").Dataset.from_list([{"input_ids": [0], "labels": [0]}])


def _inputs(batches: list[RankBatch]) -> dict[str, Any]:
    """One pack as a trainer's batch; ``input_ids`` and ``attention_mask`` are for those who count tokens."""
    [batch] = batches
    is_real = batch.doc_ids[batch.positions] != PADDING_DOC
    return {"batch": batch, "input_ids": batch.tokens[None], "attention_mask": is_real.long()[None]}


class _Steps(Dataset[RankBatch]):
    """The steps of any epoch, by their numbers: reading one reads no other."""

    def __init__(self, dataset: PackedDataset, list_tiles: TileLister) -> None:
        self._dataset, self._list_tiles = dataset, list_tiles

    def __len__(self) -> int:
        return self._dataset.steps_per_epoch

    def __getitem__(self, key: tuple[int, int]) -> RankBatch:
        batch = self._dataset.read_step(*key)
        return prepare(batch, self._list_tiles)


class _StepSampler(Sampler[list[tuple[int, int]]]):
    """The steps of one epoch in turn, each as (epoch, step)."""

    def __init__(self, steps: int) -> None:
        self._steps, self._epoch = steps, 0

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        for step in range(self._steps):
            yield [(self._epoch, step)]


class _StepLoader(DataLoader[Any]):
    def set_epoch(self, epoch: int) -> None:
        """Sets the epoch; trainers call it before each one."""
        self.batch_sampler.set_epoch(epoch)  # type: ignore[union-attr]
