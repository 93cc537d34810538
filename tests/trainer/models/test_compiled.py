"""Compiled blocks compute what plain ones do, with the same graphs for every pack."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._inductor.config
from torch import Tensor
from torch._dynamo.utils import counters
from torch.distributed.tensor import DTensor

from preshard.trainer import train
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.core.command import cli
from preshard.trainer.core.mesh import Mesh, build_mesh
from preshard.trainer.core.setup import prepare
from preshard.trainer.core.sharding import shard_model
from preshard.trainer.data.batch import RankBatch
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.extra.compiled import compile_blocks
from preshard.trainer.extra.saving import save_memory
from preshard.trainer.models.load import load_model
from preshard.trainer.models.packed import PackedModel

pytestmark = pytest.mark.process  # the packs are made by a job

Folders = Callable[[str], Path]
PACKS = 12


@pytest.fixture(autouse=True)
def no_graphs() -> Iterator[None]:
    """Forgets what others have compiled, so that it is neither used nor counted."""
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


def loaded(folder: Path, **saving: Any) -> Any:
    from packed_models import experts_in_float64  # which ranks of the pool do not have

    model = experts_in_float64(load_model(folder / "model", dtype=torch.float64))
    save_memory(model, **saving)
    return model


def step(packed: PackedModel, batch: RankBatch) -> dict[str, Tensor]:
    """The loss of a pack and its gradients."""
    packed.zero_grad()
    loss = packed(batch, ContextParallel())
    loss.backward()
    found = {name: each.grad for name, each in packed.named_parameters() if each.grad is not None}
    whole = {name: each.full_tensor() if isinstance(each, DTensor) else each for name, each in found.items()}
    return {"loss": loss.detach(), **{name: each.clone() for name, each in whole.items()}}


def difference(found: dict[str, Tensor], right: dict[str, Tensor]) -> float:
    """The largest, relative to the largest number of the loss or of a parameter's gradient."""
    assert found.keys() == right.keys()
    return max(float((found[name] - each).abs().max() / (each.abs().max() + 1e-30)) for name, each in right.items())


@pytest.mark.parametrize(
    "family",
    [
        "molmo2",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("qwen3_vl", "qwen3_5", "gpt_oss", "gemma4-experts")),
    ],
)
def test_every_kind_of_block_computes_the_same(folder_of: Folders, family: str) -> None:
    """Fails when windows, sinks, experts, layers with a state or deep features are lost in a graph, or when a second
    pack compiles anything.
    """
    folder = folder_of(family)
    plain, model = PackedModel(loaded(folder)), loaded(folder)
    packed = PackedModel(model)
    compile_blocks(model, backend="aot_eager")
    after_first = 0
    for batch in PackedDataset(folder / "dataset"):
        assert difference(step(packed, batch), step(plain, batch)) < 1e-12
        after_first = after_first or graphs()
        assert graphs() == after_first > 2
    assert batch.pack_id >= 0


@pytest.fixture(scope="module")
def many_packs(tmp_path_factory: pytest.TempPathFactory, progress: Any) -> Path:
    """A model with a window in one of its layers, and enough packs of documents and annotations."""
    from packed_models import make_model

    folder = tmp_path_factory.mktemp("many")
    make_model(folder, "qwen3-windows", progress, documents=24)
    return folder


def test_graphs_are_those_of_the_first_pack(many_packs: Path) -> None:
    """Fails when a pack's plan, its mask or its documents become part of a graph: every step would compile."""
    model = loaded(many_packs)
    packed, counts = PackedModel(model), []
    compile_blocks(model, backend="aot_eager")
    for batch in islice(PackedDataset(many_packs / "dataset"), PACKS):
        step(packed, batch)
        counts.append(graphs())
    assert counts == [counts[0]] * PACKS
    assert 0 < counts[0] <= 6


@pytest.mark.parametrize(
    "saving",
    [
        *(pytest.param(saving, marks=pytest.mark.slow) for saving in ({}, {"recompute": "full"})),
        *({"recompute": "selective"}, {"recompute": "full", "mlp_tiles": 2}),
    ],
)
def test_sharded_and_recomputed_blocks_are_compiled(many_packs: Path, alone: None, saving: dict[str, Any]) -> None:
    """Fails when FSDP2, or what computes blocks again, goes round the graphs or is caught in them."""
    plain, model = PackedModel(loaded(many_packs)), loaded(many_packs, **saving)
    packed, counts = PackedModel(model), []
    compile_blocks(model, backend="aot_eager")
    mesh = build_mesh("cpu", dp_replicate=1, dp_shard=1, ring_degree=1, ulysses_degree=1, cp_fsdp="all")
    shard_model(packed, packed.blocks, mesh.parameters, bfloat16=False)
    for batch in islice(PackedDataset(many_packs / "dataset"), 3):
        assert difference(step(packed, batch), step(plain, batch)) < 1e-12
        counts.append(graphs())
    assert len(model.get_decoder().layers) == 2
    assert counts == [counts[0]] * 3
    assert counts[0] > 2


def compiled_on_a_rank(mesh: Mesh, folder: str) -> tuple[float, int]:
    """Distance of compiled blocks from plain ones, both sharded, and how many graphs there are. Runs on each rank."""
    torch._dynamo.reset()
    counters.clear()
    plain, packed = (PackedModel(load_model(Path(folder) / "model", dtype=torch.float64)) for _ in range(2))
    compile_blocks(packed.inner, backend="aot_eager")
    for each in (plain, packed):
        shard_model(each, each.blocks, mesh.parameters, bfloat16=False)
    dataset = PackedDataset(Path(folder) / "dataset", dp_rank=mesh.dp_rank, dp_size=mesh.dp_size)
    far = max(difference(step(packed, batch), step(plain, batch)) for batch in islice(dataset, 2))
    found = far, graphs()
    torch._dynamo.reset()
    return found


@pytest.mark.slow
def test_ranks_that_share_parameters_compile(gloo_pool: Any, many_packs: Path) -> None:
    """Fails when what FSDP gathers for a block is compiled into its graph, or a rank waits for one that compiles."""
    for far, made in gloo_pool.run(compiled_on_a_rank, str(many_packs), dp_shard=2):
        assert far < 1e-12
        assert made > 2


def test_the_option_compiles_the_model_that_trains(
    many_packs: Path, alone: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when ``--compile`` does not reach the blocks, or ``--no-compile`` is taken for a default."""
    monkeypatch.setattr("preshard.trainer.extra.compiled.compile_blocks", partial(compile_blocks, backend="aot_eager"))
    mesh = build_mesh("cpu", dp_replicate=1, dp_shard=1, ring_degree=1, ulysses_degree=1, cp_fsdp="all")
    given = ["--data", many_packs / "dataset", "--model", many_packs / "model", "--steps", 1]
    found = {}
    for flag in ("--no-compile", "--compile"):
        config = cli.main([*map(str, given), flag], standalone_mode=False)
        job = prepare(config, rank=0, world_size=1)
        step(train.build_model(job, mesh, torch.device("cpu")), next(iter(job.dataset)))
        found[flag] = graphs()
    assert found["--no-compile"] == 0
    assert found["--compile"] > 2


WAYS: dict[str, list[str]] = {
    "plain": [],
    "MLPs tiled": ["--mlp-tiles", "2"],
    "all computed again, MLPs tiled": ["--mlp-tiles", "2", "--recompute", "full"],
    "attention kept": ["--recompute", "selective"],
    "adapters": ["--lora", "2"],
    "adapters, all computed again": ["--lora", "2", "--recompute", "full"],
    "adapters, MLPs tiled": ["--lora", "2", "--mlp-tiles", "2"],
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_a_deep_model_has_the_graphs_of_a_shallow_one(
    many_packs: Path, tmp_path: Path, alone: None, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Fails when each layer is compiled by itself: torch leaves those beyond the 32nd graph plain."""
    monkeypatch.setattr("preshard.trainer.extra.compiled.compile_blocks", partial(compile_blocks, backend="aot_eager"))
    mesh = build_mesh("cpu", dp_replicate=1, dp_shard=1, ring_degree=1, ulysses_degree=1, cp_fsdp="all")
    given = ["--data", many_packs / "dataset", "--steps", 1, "--compile", *WAYS[way]]
    found = {}
    for layers in (3, 6):  # a first layer gets no gradient for its input, where all before it is frozen
        folder = shutil.copytree(many_packs / "model", tmp_path / str(layers))
        written = json.loads((folder / "config.json").read_text())
        kinds = written["layer_types"] * 3
        (folder / "config.json").write_text(
            json.dumps(written | {"num_hidden_layers": layers, "layer_types": kinds[:layers]})
        )
        load_model(folder, from_scratch=True).save_pretrained(folder)
        config = cli.main([*map(str, given), "--model", str(folder)], standalone_mode=False)
        job = prepare(config, rank=0, world_size=1)
        torch._dynamo.reset()
        counters.clear()
        step(train.build_model(job, mesh, torch.device("cpu")), next(iter(job.dataset)))
        found[layers] = graphs()
    assert found[6] == found[3] > 2


@pytest.mark.slow
def test_the_default_compiler_computes_the_same(many_packs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when the fused kernels of the CPU differ by more than float32, in which norms are computed."""
    monkeypatch.setattr(torch._inductor.config, "compile_threads", 1)
    plain, model = PackedModel(loaded(many_packs)), loaded(many_packs)
    packed = PackedModel(model)
    compile_blocks(model)
    batch = next(iter(PackedDataset(many_packs / "dataset")))
    assert difference(step(packed, batch), step(plain, batch)) < 1e-5
    assert counters["inductor"]["fxgraph_cache_miss"] + counters["inductor"]["fxgraph_cache_hit"] > 2
