"""The programs of docs/integrations.md train as a plain loop on one rank does."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from preshard.schemas.errors import PreshardError

pytestmark = pytest.mark.process  # the packs are made by a job

PAGE = (Path(__file__).parents[3] / "docs" / "integrations.md").read_text(encoding="utf-8")
PROGRAMS = {
    title: code
    for title, text in re.findall(r"\n## (.*?)\n(.*?)(?=\n## |\Z)", PAGE, re.DOTALL)
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
}
TRAINER, SFT = "transformers' Trainer", "TRL's SFTTrainer"
STEPS, LR = 3, 1e-3
SETTINGS = (
    f'max_steps={STEPS}, lr_scheduler_type="constant", max_grad_norm=0.0, logging_steps=1, report_to=[], '
    "disable_tqdm=True, activation_checkpointing=False, bf16=False, ddp_find_unused_parameters=False, "
    'save_strategy="no", use_cpu=True'
)
SAVED = ('save_strategy="no"', "save_steps=2")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A program of the page with changes, and which plain loop it equals."""

    title: str
    changes: tuple[tuple[str, str], ...] = ()
    packs_of_step: int = 1
    adapters: bool = False
    first: int = 0
    run: str = ""
    family: str = "qwen3"
    ranks: tuple[int, ...] = (1, 2)
    loss: float = 1e-6
    parameters: float = 1e-9


FSDP = (
    'report_to=[], fsdp=True, fsdp_config={"version": 2, "auto_wrap_policy": "TRANSFORMER_BASED_WRAP", '
    '"state_dict_type": "FULL_STATE_DICT", "cpu_ram_efficient_loading": False}'
)
# accelerate shards nothing where it knows that it runs on CPUs
UNKNOWN_DEVICE = (
    "args.device\nfrom accelerate.state import PartialState\nfrom accelerate.utils import DistributedType\n"
    'PartialState._shared_state["distributed_type"] = DistributedType.MULTI_XPU\nmesh = build'
)
BFLOAT16 = 1e-4
"""Tolerance for losses against float64; AdamW's first steps go lr in the direction of each gradient's sign."""
SHARDED = ("dp_shard=1, ring_degree=args.world_size", "dp_shard=args.world_size, ring_degree=1")
# TrainingArguments writes fsdp into the environment of the process: "sharded" comes last.
CASES = {
    "trainer": Case(title=TRAINER, changes=(SAVED,)),
    "resumed": Case(
        title=TRAINER, changes=(SAVED, ("train()", 'train("my/run/checkpoint-2")')), first=2, run="trainer"
    ),
    "images": Case(title=TRAINER, family="qwen3_vl", ranks=(2,)),
    "two packs a step": Case(title=TRAINER, packs_of_step=2),
    "recomputed": Case(
        title=TRAINER, changes=(("activation_checkpointing=False", "activation_checkpointing=True"),), ranks=(2,)
    ),
    "bfloat16": Case(
        title=TRAINER,
        changes=(("bf16=False", "bf16=True"), ("torch.float64", "torch.float32")),
        family="qwen3_vl",
        ranks=(2,),
        loss=BFLOAT16,
        parameters=2 * STEPS * LR,
    ),
    "sft": Case(
        title=SFT,
        changes=(("PackTrainer(model", "trainer = PackTrainer(model"), (").train", ")\ntrainer.train")),
        ranks=(2,),
    ),
    "lora": Case(
        title=TRAINER,
        changes=(
            ("trainer = Pack", f"torch.manual_seed(0)\n{PROGRAMS['LoRA']}trainer = Pack"),
            ('"v_proj"]', '"v_proj"], **RANDOM'),
        ),
        adapters=True,
        ranks=(2,),
    ),
    "accelerate": Case(
        title="accelerate",
        ranks=(2,),
        changes=(
            ("Accelerator()", "Accelerator(cpu=True)"),
            ("ranks =", "losses = []\nranks ="),
            ("lr=", "weight_decay=0.0, lr="),
            (
                "    accelerator.back",
                "    losses.append(accelerator.gather(loss.detach()[None]).mean().item())\n    accelerator.back",
            ),
        ),
    ),
    "sharded": Case(title=TRAINER, changes=(("report_to=[]", FSDP), ("mesh = build", UNKNOWN_DEVICE)), ranks=(2,)),
}
RANDOM = {"init_lora_weights": False}
_AGAIN = "from dataclasses import replace\nPackTrainer(model=model, train_dataset=dataset, args=replace(args, {}))"
# what makes arguments anew resets what trainers share: it comes last
REFUSED = {
    "predict needs logits": "trainer.predict(dataset)",
    "eval_dataset is a list": "trainer.evaluate([1])",
    "eval_dataset was opened with cp_rank 0, while this rank of 2 has 1": (
        "trainer.evaluate(PackedDataset(folder, ring_degree=2, cp_rank=1 - mesh.cp.cp_rank))"
    ),
    "model takes no packs": "PackTrainer(model=load_model(saved), args=args, train_dataset=dataset)",
    "per_device_train_batch_size is 8": _AGAIN.format("per_device_train_batch_size=8"),
    "label_smoothing_factor is 0.1": _AGAIN.format("label_smoothing_factor=0.1"),
    "compute_metrics is given": "PackTrainer(model=model, args=args, train_dataset=dataset, compute_metrics=print)",
}


def run_programs(rank: int, folders: dict[str, str], out: str, size: int) -> dict[str, Any]:
    """The losses of each case and the parameters that it leaves, and what is refused. Runs in a process of the pool."""
    os.environ |= {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(size),
        "HF_HUB_OFFLINE": "1",
        "MASTER_ADDR": "127.0.0.1",
    }
    torch.distributed.init_process_group("gloo", init_method=f"file://{out}/store{size}", rank=rank, world_size=size)
    from accelerate.state import AcceleratorState

    found: dict[str, Any] = {}
    for name, case in CASES.items():
        if size not in case.ranks:
            continue
        AcceleratorState._reset_state()
        run = f"{out}/{case.run or name}-{size}"
        names: dict[str, Any] = {"RANDOM": RANDOM}
        exec(compile(_code(case, size, folders[case.family], run), name, "exec"), names)
        log = names["trainer"].state.log_history if "trainer" in names else [{"loss": x} for x in names["losses"]]
        losses = [entry["loss"] for entry in log if "loss" in entry]
        trained = [parameter.detach() for parameter in names["model"].parameters() if parameter.requires_grad]
        assert all(isinstance(parameter, DTensor) == (name == "sharded") for parameter in trained), name
        whole = [parameter.full_tensor() if isinstance(parameter, DTensor) else parameter for parameter in trained]
        found[name] = losses[case.first :], torch.cat([parameter.flatten() for parameter in whole])
        if name == "trainer":
            found["evaluated"] = names["trainer"].evaluate(names["dataset"])["eval_loss"]
            found["saved"] = f"{run}/model"
            names |= {"folder": f"{folders[case.family]}/dataset", "saved": f"{run}/model"}
            found["refused"] = {how: _refused(names, given) for how, given in REFUSED.items()}
    return found


def _refused(names: dict[str, Any], given: str) -> str:
    """Message of a trainer that is made or used in another way."""
    try:
        exec(given, names)
    except PreshardError as error:
        return str(error)
    return ""


def _code(case: Case, size: int, folder: str, run: str) -> str:
    """A program in float64 for a few steps. Two packs a step are one on each of two ranks, or accumulated on one."""
    more = (SHARDED,) if size == 2 else (("max_steps", "gradient_accumulation_steps=2, max_steps"),)
    settings = () if case.title == "accelerate" else (("max_steps=1000", SETTINGS),)
    said = (*settings, *(more if case.packs_of_step == 2 else ()), *case.changes)
    code = re.sub(r"(learning_rate|lr)=1e-\d", rf"\1={LR}", PROGRAMS[case.title])
    for old, new in (("bfloat16", "float64"), *said):
        assert old in code, (old, code)
        code = code.replace(old, new)
    for old, new in {"my/run": run, '"run': f'"{run}', "my/": f"{folder}/"}.items():
        code = code.replace(old, new)
    return code


@cache
def plain_loop(folder: Path, packs_of_step: int, adapters: bool, steps: int) -> tuple[list[float], Tensor]:
    """Losses and weights of the same steps on one rank, by our model and torch alone."""
    from peft import LoraConfig, get_peft_model

    from preshard.attention import ContextParallel
    from preshard.data import PackedDataset
    from preshard.models import PackedModel, load_model

    model: Any = load_model(folder / "model", dtype=torch.float64)
    packed, cp = PackedModel(model), ContextParallel()
    if adapters:
        torch.manual_seed(0)
        model = get_peft_model(model, LoraConfig(target_modules=["q_proj", "v_proj"], **RANDOM))
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=LR, weight_decay=0.0)
    losses = []
    for packs in _packs(PackedDataset(folder / "dataset"), packs_of_step, steps):
        weight = sum(pack.total_loss_weight for pack in packs)
        loss = torch.stack([packed(pack, cp, attention="reference") for pack in packs]).sum() / weight
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return losses, torch.cat([parameter.detach().flatten() for parameter in parameters])


def _packs(dataset: Any, of_step: int, steps: int) -> Iterator[list[Any]]:
    """The packs of each step, epoch after epoch."""
    packs = dataset.stream()
    return ([next(packs) for _ in range(of_step)] for _ in range(steps))


@pytest.fixture(scope="module")
def ran(folder_of: Callable[..., Path], gloo_pool: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Any]:
    """Findings of the last rank, by the number of ranks."""
    folders = {family: str(folder_of(family)) for family in ("qwen3", "qwen3_vl")}
    out = tmp_path_factory.mktemp("programs")
    return {size: gloo_pool.run_apart(run_programs, folders, str(out), size, size=size)[-1] for size in (1, 2)}


@pytest.mark.parametrize(("name", "size"), [(name, size) for name, case in CASES.items() for size in case.ranks])
def test_a_program_gives_what_a_plain_loop_gives(
    ran: dict[int, Any], folder_of: Callable[..., Path], name: str, size: int
) -> None:
    """Fails when a step takes other packs, its loss or gradient is scaled, or a run that resumes reads other packs."""
    case, (losses, parameters) = CASES[name], ran[size][name]
    steps = 2 if name == "accelerate" else STEPS  # its loop ends with the epoch
    right, left = plain_loop(folder_of(case.family), case.packs_of_step, case.adapters, steps)
    assert losses == pytest.approx(right[case.first :], rel=case.loss)
    assert (parameters - left).abs().max() < case.parameters


@pytest.mark.parametrize("size", [1, 2])
def test_a_trainer_evaluates_and_saves_what_it_trained(
    ran: dict[int, Any], folder_of: Callable[..., Path], size: int
) -> None:
    """Fails when an evaluation weighs packs or ranks alike, or a saved model has other names or weights."""
    from preshard.attention import ContextParallel
    from preshard.data import PackedDataset
    from preshard.models import PackedModel, load_model

    model: Any = load_model(ran[size]["saved"], dtype=torch.float64)
    _, parameters = ran[size]["trainer"]
    assert torch.equal(torch.cat([parameter.detach().flatten() for parameter in model.parameters()]), parameters)
    packed, packs = PackedModel(model), list(PackedDataset(folder_of("qwen3") / "dataset"))
    total = sum(packed(pack, ContextParallel(), attention="reference").item() for pack in packs)
    assert ran[size]["evaluated"] == pytest.approx(total / sum(pack.total_loss_weight for pack in packs), rel=1e-9)


def test_what_would_train_otherwise_is_refused(ran: dict[int, Any]) -> None:
    """Fails when an argument that means batches of the trainer's own is taken and ignored."""
    for begin, message in ran[2]["refused"].items():
        assert message.startswith(begin)
