"""Every argument of the trainers of Hugging Face is honoured on packs, means nothing there, or is refused."""

from __future__ import annotations

import inspect
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from preshard.schemas.errors import ConfigError
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.integrations.arguments import (
    ARGUMENTS,
    GIVEN,
    INSIDE,
    check_arguments,
    check_given,
    check_kind,
)
from preshard.trainer.integrations.hugging_face import POSITIONAL, OnPacks, TakesPacks

HONOURED = """
output_dir num_train_epochs max_steps resume_from_checkpoint do_train do_eval do_predict seed full_determinism use_cpu
learning_rate lr_scheduler_type lr_scheduler_kwargs warmup_steps optim optim_args optim_target_modules weight_decay
adam_beta1 adam_beta2 adam_epsilon gradient_accumulation_steps max_grad_norm bf16 tf32 activation_checkpointing
gradient_checkpointing torch_empty_cache_steps logging_strategy logging_steps logging_first_step log_on_each_node
logging_nan_inf_filter log_level log_level_replica include_num_input_tokens_seen disable_tqdm report_to run_name
project trackio_space_id trackio_bucket_id trackio_static_space_id skip_memory_metrics debug eval_strategy eval_steps
eval_delay eval_on_start load_best_model_at_end metric_for_best_model greater_is_better save_only_model save_strategy
save_steps save_on_each_node save_total_limit enable_jit_checkpoint ignore_data_skip
restore_callback_states_from_checkpoint push_to_hub hub_token hub_private_repo hub_model_id hub_strategy
hub_always_push hub_revision dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order ddp_find_unused_parameters
ddp_bucket_cap_mb ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout eos_token pad_token
router_aux_loss_coef
"""
"""Arguments that the trainers honour, on packs as elsewhere."""

BY_RANKS = ["parallelism_config", "fsdp", "fsdp_config"]
"""Arguments that are honoured as far as ``OnPacks`` does not refuse what the accelerator makes of them."""

NOTHING = {
    "packs are read as they were packed": """remove_unused_columns dataset_text_field dataset_kwargs dataset_num_proc
        max_length truncation_mode packing packing_strategy padding_free pad_to_multiple_of eval_packing
        length_column_name dataloader_drop_last""",
    "an evaluation takes one pack at a time and gives a loss alone": """per_device_eval_batch_size prediction_loss_only
        eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics
        label_names""",
    "what it belongs to is refused": "torch_compile_backend torch_compile_mode liger_kernel_config",
    "the model is there, and keeps no cache": "trust_remote_code use_cache",
    "torchrun says it": "local_rank",
}
"""Arguments that mean nothing on packs, by the reason."""

OLD = {
    "gradient_checkpointing_kwargs": "activation_checkpointing_kwargs",
}
"""Deprecated names, and what the trainers make of them."""

OF_DPO = {
    "--beta": "beta",
    "sigmoid, TRL's default": "loss_type",
    "always": "disable_dropout precompute_ref_log_probs",
    "pack by pack": "precompute_ref_batch_size",
    "by packs, or options of their own": """model_init_kwargs trust_remote_code pad_token activation_offloading
        dataset_num_proc max_length truncation_mode padding_free pad_to_multiple_of""",
    "TRL's default": """loss_weights ld_alpha f_divergence_type f_alpha_divergence_coef label_smoothing use_weighting
        discopop_tau""",
    "none": "router_aux_loss_coef",
    "the first model stays": "sync_ref_model ref_model_mixup_alpha ref_model_sync_steps",
}
"""Arguments of ``DPOConfig`` alone, whose trainer is refused, by what ``preshard.train --loss dpo`` has for them."""

GIVEN_HONOURED = """
model args train_dataset eval_dataset processing_class model_init callbacks optimizers optimizer_cls_and_kwargs
peft_config
"""
"""Arguments of the trainers themselves that are honoured."""


def names(kind: type) -> set[str]:
    return {each.name for each in fields(kind)}


def test_somebody_has_looked_at_every_argument() -> None:
    """Fails when an installed trainer has an argument that is in no table, or none that is in one: whether packs honour
    it has to be found out first.
    """
    from transformers import TrainingArguments
    from trl import DPOConfig, SFTConfig

    nothing = [name for listed in NOTHING.values() for name in listed.split()]
    listed = [*HONOURED.split(), *BY_RANKS, *nothing, *ARGUMENTS, *INSIDE, *OLD]
    assert len(listed) == len(set(listed)), "an argument is in two tables"
    assert names(TrainingArguments) | names(SFTConfig) == set(listed)
    assert names(DPOConfig) - names(TrainingArguments) == {
        name for listed in OF_DPO.values() for name in listed.split()
    }


def test_somebody_has_looked_at_every_argument_of_a_trainer() -> None:
    """Fails when a trainer takes something else besides its configuration."""
    from transformers import Trainer
    from trl import SFTTrainer

    orders = [list(inspect.signature(kind.__init__).parameters)[1:] for kind in (Trainer, SFTTrainer)]
    assert [tuple(order[: len(POSITIONAL)]) for order in orders] == [POSITIONAL] * 2
    taken = {name for order in orders for name in order}
    assert taken == {*GIVEN_HONOURED.split(), *GIVEN}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from trl import SFTConfig

    folder = str(tmp_path_factory.mktemp("run"))
    return SFTConfig(folder, per_device_train_batch_size=1, use_cpu=True, bf16=False, report_to=[])


OTHERS: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "average_tokens_across_devices": False,
    "label_smoothing_factor": 0.1,
    "neftune_noise_alpha": 5.0,
    "deepspeed": {},
    "data_seed": 1,
    "train_sampling_strategy": "group_by_length",
    "model_init_kwargs": {"dtype": "float32"},
    "chat_template_path": "other.jinja",
    "loss_type": "dft",
    "completion_only_loss": True,
}
"""Values that are refused; of all others ``True`` is."""


def test_the_defaults_train(config: Any) -> None:
    """Fails when a configuration that changes nothing is refused."""
    check_arguments(config)


@pytest.mark.parametrize("name", ARGUMENTS)
def test_what_would_have_no_effect_is_refused(config: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when an argument that changes a loss is taken and ignored, or the message has no value to set."""
    monkeypatch.setattr(config, name, OTHERS.get(name, True))
    with pytest.raises(ConfigError, match=f"^{name} is .*, and .*: set it to ") as raised:
        check_arguments(config)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("activation_checkpointing_kwargs", "use_reentrant", True),
        ("activation_checkpointing_kwargs", "selective", True),
        ("accelerator_config", "split_batches", True),
        ("accelerator_config", "dispatch_batches", True),
    ],
)
def test_arguments_in_others_are_refused(
    config: Any, name: str, key: str, value: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when an argument is not seen because it is inside of another one."""
    held = getattr(config, name)
    if isinstance(held, dict) or held is None:
        monkeypatch.setattr(config, name, {**(held or {}), key: value})
    else:
        monkeypatch.setattr(held, key, value)
    with pytest.raises(ConfigError, match=f"^{name}.{key} is True, and "):
        check_arguments(config)


@pytest.mark.parametrize("name", GIVEN)
def test_what_a_trainer_is_given_in_vain_is_refused(name: str) -> None:
    """Fails when a function of the user's own is never called."""
    with pytest.raises(ConfigError, match=f"^{name} is given, and .*: leave it out$"):
        check_given({name: object()})
    check_given({name: None, "model": object()})


def test_trainers_that_packs_do_not_follow_are_refused() -> None:
    """Fails when a trainer with another loss trains by that of packs."""
    from transformers import Trainer
    from trl import DPOTrainer, SFTTrainer

    for kind in (Trainer, SFTTrainer):
        check_kind(type("PackTrainer", (OnPacks, kind), {}))
    with pytest.raises(ConfigError, match="DPOTrainer does not train on packs: python -m preshard"):
        check_kind(type("PackTrainer", (OnPacks, DPOTrainer), {}))


def test_the_loader_is_as_the_arguments_say(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when an argument of the loader is replaced by ours."""
    cpu, trainer = torch.device("cpu"), SimpleNamespace(args=config)
    assert OnPacks._loading(trainer, cpu)["num_workers"] == 0  # type: ignore[arg-type]
    said = {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 3, "multiprocessing_context": "forkserver"}
    for name, value in {**said, "in_order": False}.items():
        monkeypatch.setattr(config, f"dataloader_{name}", value)
    found = OnPacks._loading(trainer, cpu)  # type: ignore[arg-type]
    assert {name: found[name] for name in said} == said
    assert found["in_order"] is False
    assert found["worker_init_fn"] is not None


class Given:
    """Stand-in for a trainer of Hugging Face; between it and ``OnPacks`` stands one of the user's own."""

    __module__ = "transformers.trainer"

    def __init__(self, model: Any = None, args: Any = None, data_collator: Any = None, **named: Any) -> None:
        assert data_collator is None
        self.model, self.args, self.named = model, args, named
        self.accelerator = SimpleNamespace(state=SimpleNamespace())
        self.callbacks: list[Any] = []

    def add_callback(self, callback: Any) -> None:
        self.callbacks.append(callback)


class Own(Given):
    def __init__(self, *given: Any, extra: int = 0, **named: Any) -> None:
        super().__init__(*given, **named)
        self.extra = extra


@pytest.mark.parametrize("by_name", [True, False])
def test_a_trainer_of_the_users_own_gets_its_arguments(config: Any, by_name: bool) -> None:
    """Fails when a class between ``OnPacks`` and the trainer that passes on what it is given gets something else."""
    takes = TakesPacks(cp=ContextParallel(), attention="gather", packed=None, forward=lambda *_: None)  # type: ignore[arg-type]
    model = SimpleNamespace(takes_packs=takes, config=None, get_output_embeddings=lambda: None)
    given = {"model": model, "args": config, "data_collator": None, "train_dataset": "packs", "eval_dataset": "others"}
    kind: Any = type("PackTrainer", (OnPacks, Own), {})
    made = kind(**given, extra=3) if by_name else kind(*given.values(), extra=3)
    assert (made.model, made.args, made.extra) == (model, config, 3)
    assert (made.train_dataset, made.eval_dataset) == ("packs", "others")
    assert made.named == {"train_dataset": "packs", "eval_dataset": "others"}
