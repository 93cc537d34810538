"""The program of docs/integrations.md for torchtitan trains as a plain loop on one rank does.

It runs where torchtitan is installed: ``tests/matrix/run.py torchtitan-0.3.0``.
"""

from __future__ import annotations

import json
import os
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from pages import programs_of

from preshard.packer_service.config import load_config
from preshard.packer_service.demo.model import write_model_folder
from preshard.packer_service.job.pack import pack
from preshard.packer_service.runtime.executors import PlainExecutor
from preshard.schemas.errors import PreshardError

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(find_spec("torchtitan") is None, reason="needs torchtitan, which wants a newer torch"),
]

[PROGRAM] = programs_of("integrations", "torchtitan")
LR, BETAS, DECAY = (4e-4, 8e-4, 8e-4), (0.9, 0.95), 0.1
"""Settings with which torchtitan's debug model trains: two steps of warm-up."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """The program with changes; which ranks run it, how many packs a step has, and from which step on."""

    more: str = ""
    attention: str = "ring"
    of_step: int = 1
    sizes: tuple[int, ...] = (1, 2)
    first: int = 0
    family: str = "qwen3"
    validated: bool = False


PARALLEL = "config.parallelism.context_parallel_degree = 1\nconfig.parallelism.{} = 2"
ULYSSES = "config.dataloader.ulysses_degree = config.parallelism.context_parallel_degree"
PLAIN_LOSS = "from torchtitan.components.loss import CrossEntropyLoss\nconfig.loss = CrossEntropyLoss.Config()"
CASES = {
    "ring": Case(),
    # what two ranks have saved, also on one
    "resumed": Case(more="config.checkpoint.load_step = 2\nconfig.dump_folder = saved", first=2),
    "gather": Case(attention="gather", more=PLAIN_LOSS),
    "validated": Case(more="config.validator.freq = 2", validated=True),
    "two packs validated": Case(
        more=PARALLEL.format("data_parallel_shard_degree") + "\nconfig.validator.freq = 2",
        of_step=2,
        sizes=(2,),
        validated=True,
    ),
    "compiled": Case(more="config.compile.enable = True", attention="gather"),
    "llama": Case(attention="gather", family="llama"),
    "heads": Case(attention="ulysses", more=ULYSSES),
    "accumulated": Case(more="config.training.global_batch_size = 2", of_step=2, sizes=(1,)),
    "two packs": Case(more=PARALLEL.format("data_parallel_shard_degree"), of_step=2, sizes=(2,)),
    "tensor parallel": Case(more=PARALLEL.format("tensor_parallel_degree"), sizes=(2,)),
}
REFUSED = {
    "training.local_batch_size is 2": "config.training.local_batch_size = 2",
    "training.seq_len is 512, and packs have a length of their own: set it to 1024": "config.training.seq_len = 512",
    "training.disable_cuda_graphs is False": "config.training.disable_cuda_graphs = False",
    "layer 0 has MoE": (
        "from torchtitan.models.qwen3 import model_registry\nconfig.model_spec = model_registry('debugmodel_moe')"
    ),
    "validator.enable is True": "config.validator.enable = True",
    "parallelism.spmd_backend is partial_dtensor": "config.parallelism.spmd_backend = 'partial_dtensor'",
    "dataloader.ring_degree is 4, while this rank of": "config.dataloader.ring_degree = 4",
    "ulysses_degree is 3, which does not divide": "config.dataloader.ulysses_degree = 3",
    "loss is MSELoss": "from torchtitan.components.loss import MSELoss\nconfig.loss = MSELoss.Config()",
    "layer 0 has VarlenAttention": (
        "from torchtitan.models.common.attention import VarlenAttention\n"
        "config.model_spec.model.layers[0].attention.inner_attention = VarlenAttention.Config(window_size=(64, 0))"
    ),
    "the model has an embedding of 100 rows": "config.model_spec.model.vocab_size = 100",
    "dataloader.dataset_path is empty": "config.dataloader.dataset_path = None",
}


def run_case(
    rank: int, name: str, folder: str, out: str, size: int, port: int
) -> tuple[list[tuple[float, ...]], dict[int, float]]:
    """Figures that a case logs of each step: mean loss, largest loss, norm; and losses of validation by their steps.

    Runs in a process with one trainer.
    """
    _join(rank, size, port, folder)
    from torchtitan.components.metrics import MetricsProcessor

    logged: list[tuple[float, ...]] = []
    MetricsProcessor.log = lambda *figures, **_: logged.append(figures[2:])
    held_out: dict[int, float] = {}
    MetricsProcessor.log_validation = lambda *_, loss, step: held_out.update({step: loss})
    names: dict[str, Any] = {"saved": f"{out}/ring-2"}
    exec(compile(_code(CASES[name], size, folder, f"{out}/{name}-{size}"), name, "exec"), names)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert (graphs > 0) == (name == "compiled"), graphs
    assert graphs < 20, "blocks are compiled anew for each pack"
    return logged, held_out


def run_refused(rank: int, folder: str, out: str, size: int, port: int) -> dict[str, str]:
    """Messages about each program of ``REFUSED``."""
    _join(rank, size, port, folder)
    found = {}
    for begin, change in REFUSED.items():
        try:
            exec(_code(Case(more=change), size, folder, f"{out}/refused"), {})
        except PreshardError as error:
            found[begin] = str(error)
    return found


def run_places(rank: int, folder: str, out: str, size: int, port: int) -> list[tuple[int, ...]]:
    """This rank's place in a pack of four, and in one of two beside tensor parallelism."""
    _join(rank, size, port, folder)
    from torchtitan.distributed import ParallelDims

    from preshard.torchtitan import context_parallel

    torch.distributed.init_process_group("gloo")
    rest = {"dp_replicate": 1, "dp_shard": 1, "pp": 1, "ep": 1, "world_size": size}
    found = [
        context_parallel(ParallelDims(cp=4, tp=1, **rest), ulysses_degree=2),
        context_parallel(ParallelDims(cp=2, tp=2, **rest)),
    ]
    members = [torch.distributed.get_process_group_ranks(cp.cp_group) for cp in found if cp.cp_group is not None]
    return [(cp.ring_degree, cp.ulysses_degree, cp.cp_rank, *ranks) for cp, ranks in zip(found, members, strict=True)]


def _join(rank: int, size: int, port: int, folder: str) -> None:
    """Prepares torchtitan's first import: this rank's place, and what the CPU lacks."""
    os.environ |= {name: str(rank) for name in ("RANK", "LOCAL_RANK")}
    os.environ |= {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    _take_cpus_for_devices()
    _take_sizes(json.loads((Path(folder) / "model" / "config.json").read_text(encoding="utf-8")))


def _code(case: Case, size: int, folder: str, run: str) -> str:
    """The program in float32 for three steps, the first two of which are saved."""
    settings = (
        f'config.dump_folder = "{run}"\nconfig.training.mixed_precision_param = "float32"\n'
        "config.checkpoint.enable, config.checkpoint.interval = True, 2\n"
        "config.checkpoint.initial_load_path = config.hf_assets_path\nconfig.checkpoint.initial_load_in_hf = True\n"
    )
    held_out = f', validation="{folder}/dataset"' if case.validated else ""
    code = PROGRAM if case.family == "qwen3" else PROGRAM.replace("qwen3", "llama3")
    for old, new in (
        ("my/", f"{folder}/"),
        ("degree = 8", f"degree = {size}"),
        ("steps = 1000", "steps = 3"),
        ('attention="ring"', f'attention="{case.attention}"{held_out}'),
        ('layout="balanced_ring"', 'layout="zigzag"'),
        ("trainer = ", f"{settings}{case.more}\ntrainer = "),
    ):
        assert old in code, (old, code)
        code = code.replace(old, new)
    return code


def _take_cpus_for_devices() -> None:
    """torchtitan asks its devices for what the CPU has no answer to, and gloo adds numbers alone."""
    import torch._utils

    torch._utils._get_available_device_type = lambda: "cpu"
    stands_in: dict[str, Any] = {
        "get_device_name": lambda *_: "cpu",
        "get_device_properties": lambda *_: types.SimpleNamespace(total_memory=2**34),
        "reset_peak_memory_stats": lambda: None,
        "empty_cache": lambda: None,
        "memory_stats": lambda *_: {},
        "current_device": lambda: 0,
    }
    for name, function in stands_in.items():
        setattr(torch.cpu, name, function)
    import time

    import torchtitan.distributed.fsdp
    import torchtitan.trainer
    from torch.distributed.fsdp import FSDPModule

    undivided = torchtitan.distributed.fsdp.disable_fsdp_gradient_division

    def only_add(model: Any) -> None:
        undivided(model)
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_force_sum_reduction_for_comms(True)

    torchtitan.distributed.fsdp.disable_fsdp_gradient_division = only_add
    torchtitan.trainer.time = types.SimpleNamespace(perf_counter=time.perf_counter, sleep=lambda _: None)


def _take_sizes(config: dict[str, Any]) -> None:
    """Gives torchtitan's debug model the sizes of a Hugging Face one."""
    from torchtitan.models import llama3, qwen3

    dim, head_dim = config["hidden_size"], config["head_dim"]
    theta = config["rope_parameters"]["rope_theta"]
    layers = {
        "n_layers": config["num_hidden_layers"],
        "dim": dim,
        "n_heads": config["num_attention_heads"],
        "n_kv_heads": config["num_key_value_heads"],
        "hidden_dim": config["intermediate_size"],
    }

    def sized(attn_backend: str, **_: Any) -> Any:
        model = full(attn_backend)
        model.dim, model.vocab_size, model.norm = dim, config["vocab_size"], replace(model.norm, normalized_shape=dim)
        model.enable_weight_tying = config["tie_word_embeddings"]
        model.tok_embeddings.num_embeddings = model.lm_head.out_features = config["vocab_size"]
        model.tok_embeddings.embedding_dim = model.lm_head.in_features = dim
        if config["model_type"] == "llama":
            rope: Any = llama3.ComplexRoPE.Config(dim=head_dim, max_seq_len=4096, theta=theta)
            model.layers = llama3._build_llama3_layers(**layers, attn_backend=attn_backend, rope=rope)
        else:
            rope = qwen3.CosSinRoPE.Config(dim=head_dim, max_seq_len=4096, theta=theta)
            model.layers = qwen3._build_qwen3_layers(**layers, head_dim=head_dim, attn_backend=attn_backend, rope=rope)
        return model

    configs = llama3.llama3_configs if config["model_type"] == "llama" else qwen3.qwen3_configs
    full, configs["debugmodel"] = configs["debugmodel"], sized


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory: pytest.TempPathFactory, progress: Any) -> Callable[[str], Path]:
    """``folder_of(family)``: a Hugging Face model, and packs of turns that count a fraction each."""
    from packed_models import SETTINGS, TEXT_MODELS, VOCABULARY

    from preshard.trainer.models.load import load_model

    @cache
    def make(family: str) -> Path:
        folder = tmp_path_factory.mktemp(family)
        # torchtitan's own number in the norms of its llama
        changed = TEXT_MODELS[family] | ({"rms_norm_eps": 1e-5} if family == "llama" else {})
        write_model_folder(folder / "model", "qwen3", vocabulary=VOCABULARY, files={"config.json": changed})
        rows = []
        for number in range(9):
            asked = {"role": "user", "content": f"{number}: what is this? " * (3 + 2 * number)}
            said = {"role": "assistant", "content": "It is noise. " * (9 + 5 * number), "weight": 0.3 + 0.17 * number}
            rows.append({"id": f"row-{number}", "messages": [asked, said]})
        (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
        config = load_config(None, [*SETTINGS, f"model={folder / 'model'}"])
        pack([str(folder / "rows.jsonl")], str(folder / "dataset"), config, PlainExecutor(), progress)
        load_model(folder / "model", from_scratch=True, seed=1).save_pretrained(folder / "model")
        return folder

    return make


@pytest.fixture(scope="module")
def run(
    folder_of: Callable[[str], Path], gloo_pool: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., list[Any]]:
    """``run(function, *args, size=, family=)``: what each rank of a world of its own answers; each is made once."""
    from free_ports import free_ports

    out = str(tmp_path_factory.mktemp("runs"))

    @cache
    def once(function: Callable[..., Any], *args: Any, size: int, family: str = "qwen3") -> list[Any]:
        [port] = free_ports(1)
        return list(gloo_pool.run_apart(function, *args, str(folder_of(family)), out, size, port, size=size))

    return once


@cache
def plain_loop(folder: Path, of_step: int) -> list[tuple[float, float, float]]:
    """Losses, norms of gradients and losses over all packs after the same steps on one rank, by our model in float64
    and torch alone.
    """
    from preshard.attention import ContextParallel
    from preshard.data import PackedDataset
    from preshard.models import PackedModel, load_model

    model: Any = load_model(folder / "model", dtype=torch.float64)
    packed, packs = PackedModel(model), PackedDataset(folder / "dataset").stream()
    optimizer = torch.optim.AdamW(model.parameters(), betas=BETAS, weight_decay=DECAY)
    found = []
    for lr in LR:
        taken = [next(packs) for _ in range(of_step)]
        weight = sum(pack.total_loss_weight for pack in taken)
        assert weight != round(weight)
        loss = torch.stack([packed(pack, ContextParallel(), attention="reference") for pack in taken]).sum() / weight
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.param_groups[0]["lr"] = lr
        optimizer.step()
        with torch.no_grad():
            every = list(PackedDataset(folder / "dataset"))
            every = every[: len(every) // of_step * of_step]  # what fills steps of all ranks
            sums = sum(packed(pack, ContextParallel(), attention="reference") for pack in every)
            found.append((loss.item(), norm.item(), (sums / sum(pack.total_loss_weight for pack in every)).item()))
        optimizer.zero_grad()
    return found


@pytest.mark.parametrize(("name", "size"), [(name, size) for name, case in CASES.items() for size in case.sizes])
def test_the_program_gives_what_a_plain_loop_gives(
    run: Callable[..., list[Any]], folder_of: Callable[[str], Path], name: str, size: int
) -> None:
    """Fails when a step takes other packs, its loss or gradient is scaled, or a run that resumes reads other packs."""
    if name == "resumed":
        run(run_case, "ring", size=2)
    case = CASES[name]
    right = plain_loop(folder_of(case.family), case.of_step)[case.first :]
    for logged, held_out in run(run_case, name, size=size, family=case.family):
        assert [loss for loss, *_ in logged] == pytest.approx([loss for loss, *_ in right], rel=1e-6)
        assert [norm for *_, norm in logged] == pytest.approx([norm for _, norm, _ in right], rel=1e-3)
        steps = {1, 2} if case.validated else set()
        assert held_out == pytest.approx({step: right[step - 1][2] for step in steps}, rel=1e-6)


@pytest.mark.parametrize("size", [1, 2])
def test_what_would_train_otherwise_is_refused(run: Callable[..., list[Any]], size: int) -> None:
    """Fails when an option that means other batches, or a model that packs cannot follow, is taken and ignored."""
    for said in run(run_refused, size=size):
        assert said.keys() == REFUSED.keys()
        assert all(message.startswith(begin) for begin, message in said.items())


def test_the_ranks_of_a_pack_are_those_of_the_mesh(run: Callable[..., list[Any]]) -> None:
    """Fails when ranks of a pack are joined or numbered otherwise than torchtitan's mesh has them."""
    places = run(run_places, size=4)
    assert [place for place, _ in places] == [(2, 2, rank, 0, 1, 2, 3) for rank in range(4)]
    assert [place for _, place in places] == [(2, 1, rank // 2, rank % 2, rank % 2 + 2) for rank in range(4)]
