"""Arguments of Hugging Face trainers that packs cannot honour, each with the values it may have.

What is in none of the tables is the trainer's own to honour, or means nothing where batches are packs.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from preshard.schemas.errors import ConfigError


class Legal(NamedTuple):
    """The only values of an argument, of which messages name the first, and why there are no others."""

    values: tuple[Any, ...]
    why: str


_LABELS = "the loss is that of the packs' labels"
_ORDER = "the order of packs was fixed when they were packed"
_LOADED = "the model is loaded already, by load_model"
_LOGITS = "packs do not keep logits"

ARGUMENTS: dict[str, Legal] = {
    "per_device_train_batch_size": Legal((1,), "a pack is a batch already"),
    "auto_find_batch_size": Legal((False,), "a pack is a batch already"),
    "average_tokens_across_devices": Legal((True,), "losses are divided by the weights of all ranks"),
    "label_smoothing_factor": Legal((0,), _LABELS),
    "neftune_noise_alpha": Legal((None, 0), "its noise depends on a batch's length, which is not a document's"),
    "fp16": Legal((False,), "packs are computed in float32, float64 or bfloat16 (bf16=True)"),
    "fp16_full_eval": Legal((False,), "an evaluation computes as training does"),
    "bf16_full_eval": Legal((False,), "an evaluation computes as training does"),
    "torch_compile": Legal((False,), "preshard.models.compile_blocks(model) compiles what packs allow"),
    "use_liger_kernel": Legal((False,), "it would replace the forward that takes packs"),
    "deepspeed": Legal((None,), "ranks share packs under DDP and FSDP2 alone"),
    "data_seed": Legal((None,), _ORDER),
    "train_sampling_strategy": Legal(("random", "sequential"), _ORDER),
    # of TRL
    "model_init_kwargs": Legal((None,), _LOADED),
    "chat_template_path": Legal((None,), "conversations were rendered when they were packed"),
    "shuffle_dataset": Legal((False,), _ORDER),
    "completion_only_loss": Legal((None,), _LABELS),
    "assistant_only_loss": Legal((False,), _LABELS),
    "loss_type": Legal(("nll",), _LABELS),
    "activation_offloading": Legal((False,), "preshard.models.save_memory(model, offload='host') moves activations"),
}
"""Fields of ``TrainingArguments`` and ``SFTConfig``."""

INSIDE: dict[str, dict[str, Legal]] = {
    "activation_checkpointing_kwargs": {
        "use_reentrant": Legal((False, None), "ranks exchange in recomputed blocks, which must see their gradients"),
        "selective": Legal((False, None), "preshard.models.save_memory(model, recompute='selective') keeps attention"),
    },
    "accelerator_config": {
        "split_batches": Legal((False,), "a pack is a batch already"),
        "dispatch_batches": Legal((None, False), "each rank reads its own part"),
    },
}
"""Fields that hold several arguments."""

GIVEN = {
    "data_collator": "a pack is a batch already",
    "compute_loss_func": _LABELS,
    "compute_metrics": _LOGITS,
    "preprocess_logits_for_metrics": _LOGITS,
    "formatting_func": "rows were rendered when they were packed",
    "quantization_config": _LOADED,
}
"""Arguments of trainers themselves that are left out."""


def check_kind(kind: type) -> None:
    """Checks that packs can be trained on by a class of trainer.

    Raises:
        ConfigError: it is one of TRL's other than ``SFTTrainer``.
    """
    of_trl = [base.__name__ for base in kind.__mro__ if base.__module__.startswith("trl.trainer.")]
    if of_trl and "SFTTrainer" not in of_trl:
        remedy = ": python -m preshard.train --loss dpo does" if of_trl[0] == "DPOTrainer" else ""
        raise ConfigError(f"{of_trl[0]} does not train on packs{remedy or '; SFTTrainer and Trainer do'}")


def check_given(given: dict[str, Any]) -> None:
    """Checks what a trainer is given besides its configuration.

    Raises:
        ConfigError: something is among it that packs cannot honour.
    """
    for name, why in GIVEN.items():
        if given.get(name) is not None:
            raise ConfigError(f"{name} is given, and {why}: leave it out")


def check_arguments(args: Any) -> None:
    """Checks a trainer's configuration.

    Args:
        args: ``TrainingArguments``, or a class that inherits from it.

    Raises:
        ConfigError: an argument has a value that packs cannot honour.
    """
    for name, legal in ARGUMENTS.items():
        if hasattr(args, name):
            _check(name, getattr(args, name), legal)
    for name, inside in INSIDE.items():
        held = getattr(args, name, None) or {}
        for key, legal in inside.items():
            value = held.get(key, legal.values[0]) if isinstance(held, dict) else getattr(held, key, legal.values[0])
            _check(f"{name}.{key}", value, legal)


def _check(name: str, value: Any, legal: Legal) -> None:
    if value not in legal.values:
        raise ConfigError(f"{name} is {value}, and {legal.why}: set it to {legal.values[0]!r}")
