"""Frozen parts and adapters: what trains gets the gradients that documents alone give it, and the rest none."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from packed_ranks import counting_weights, load_on_a_rank
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from preshard.schemas.errors import ConfigError
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.core.mesh import Mesh
from preshard.trainer.data.dataset import PackedDataset
from preshard.trainer.extra.compiled import compile_blocks
from preshard.trainer.extra.parts import Lora, Parts, count_trains, named_parameters, names_of
from preshard.trainer.models.interface import base_names
from preshard.trainer.models.load import empty_model, load_sharded
from preshard.trainer.models.packed import PackedModel

pytestmark = pytest.mark.process  # packing decodes media in a process of its own

ADAPTED = ("q_proj", "down_proj", "qkv")
ADAPTERS = Parts(lora=Lora(rank=3, alpha=12, targets=ADAPTED))

CASES: list[tuple[str, Parts, tuple[str, ...], str, dict[str, int], dict[str, Any]]] = [
    ("qwen3_vl", Parts(freeze=("vision",)), ("model.visual.",), "hybrid", {"ulysses": 2, "ring": 2}, {}),
    (
        "internvl",
        Parts(freeze=("language",)),
        ("model.language_model.", "lm_head."),
        "gather",
        {"ring": 2},
        {"recompute": "full"},
    ),
    (
        "gemma3",
        Parts(freeze=("vision_tower", "language_model.layers.0", "embed_tokens")),
        ("model.vision_tower.", "model.language_model.layers.0.", "model.language_model.embed_tokens.", "lm_head."),
        "ring",
        {"ring": 2, "dp_shard": 2},
        {},
    ),
    ("qwen3_vl", ADAPTERS, (), "gather", {"ring": 2}, {"recompute": "selective", "mlp_tiles": 2}),
    ("qwen3_5", Parts(lora=Lora(rank=2, alpha=2)), (), "hybrid", {"ulysses": 2, "ring": 2}, {}),
]
"""Each kind of part, on splits whose ranks hold units or none; what is frozen, by the names of ``transformers``."""


def sample(name: str, shape: tuple[int, ...]) -> Tensor:
    """Values of an adapter, whose own first product is zero."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "little")
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) / 8


def train_parts(
    mesh: Mesh, folder: str, parts: Parts, kind: str, saving: dict[str, Any]
) -> tuple[float, dict[str, Tensor | None], list[tuple[int, int, dict[str, int]]]]:
    """Losses and gradients of all packs, and of each: units here, nodes of the graph and the backward's exchanges."""
    from torch.distributed.tensor.debug import CommDebugMode

    packed, cp, total, seen = load_on_a_rank(mesh, f"{folder}/model", parts=parts, saving=saving), mesh.cp, 0.0, []
    with torch.no_grad():
        for name, parameter in named_parameters(packed.inner):
            if parts.lora is not None and parameter.requires_grad:
                part = torch.distributed.tensor.distribute_tensor(
                    sample(name, tuple(parameter.shape)), parameter.device_mesh, parameter.placements
                )
                parameter.copy_(part)
    for batch in PackedDataset(f"{folder}/dataset", layout="zigzag", **mesh.place):
        loss = packed(batch, cp, attention=kind)
        exchanges = CommDebugMode()
        with exchanges if not saving else nullcontext():  # it calls hooks in what is computed again
            loss.backward()
        total += loss.item()
        counts = {str(name).split(".")[1]: count for name, count in exchanges.get_comm_counts().items()}
        seen.append((len(batch.units), batch.pack_id, counts))
    gradients = {
        name: each.grad.full_tensor() if isinstance(each.grad, DTensor) else each.grad
        for name, each in named_parameters(packed.inner)
    }
    return total, gradients, seen


def alone_in_parts(folder: Path, family: str, parts: Parts, frozen: tuple[str, ...], packs: set[int]) -> Any:
    """The same of ``transformers`` and ``peft`` for each document alone: the loss, and gradients by their names."""
    from packed_models import alone, load_original, whole_packs

    model = base = load_original(folder, family)
    if parts.lora is not None:
        import peft

        lora = parts.lora
        targets = list(lora.targets)
        if targets == ["language"]:
            paths = [path for path, each in base.named_modules() if isinstance(each, nn.Linear)]
            targets = [path for path in paths if path.startswith("model.language_model.layers.")]
        model = peft.get_peft_model(base, peft.LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets))
    with torch.no_grad():
        for name, parameter in base.named_parameters():
            if name.startswith(frozen):
                parameter.requires_grad_(False)
            elif parts.lora is not None and parameter.requires_grad:
                parameter.copy_(sample(name, tuple(parameter.shape)))
    loss = sum((alone(base, batch) for batch in whole_packs(str(folder / "dataset")) if batch.pack_id in packs), 0.0)
    loss.backward()
    assert model.training
    return loss.item(), {name: each.grad for name, each in named_parameters(base)}


OFTEN = (1, 3, 4)
"""Places in the list of cases that `make test` runs: parts frozen, adapters on projections, and on everything."""


@pytest.mark.parametrize(
    ("family", "parts", "frozen", "kind", "degrees", "saving"),
    [pytest.param(*case, marks=[pytest.mark.slow] * (place not in OFTEN)) for place, case in enumerate(CASES)],
)
def test_what_trains_gets_the_gradients_of_documents_alone(
    gloo_pool: Any,
    folder_of: Callable[..., Path],
    family: str,
    parts: Parts,
    frozen: tuple[str, ...],
    kind: str,
    degrees: dict[str, int],
    saving: dict[str, Any],
) -> None:
    """Fails when a part is resolved to other parameters, a frozen one has a gradient, or what trains beside it another
    one; when ranks disagree on what they exchange, and hang.
    """
    folder = folder_of(family)
    answers = gloo_pool.run(train_parts, str(folder), parts, kind, saving, **degrees)
    packs = {pack for _, _, seen in answers for _, pack, _ in seen}
    loss, expected = alone_in_parts(folder, family, parts, frozen, packs)
    assert sum(total for total, _, _ in answers) == pytest.approx(loss, rel=1e-6)
    gradients = answers[0][1]
    trains = {name for name, gradient in gradients.items() if gradient is not None}
    assert trains == {name for name, gradient in expected.items() if gradient is not None}
    assert 0 < len(trains) < len(gradients)
    norm = torch.cat([expected[name].flatten() for name in trains]).norm()
    apart = {name: float((gradients[name] - expected[name]).norm() / norm) for name in trains}
    assert max(apart.values()) < 1e-6, max(apart, key=lambda name: apart[name])
    if degrees == {"ulysses": 2, "ring": 2}:
        assert any(units == 0 for _, _, seen in answers for units, _, _ in seen), "every rank had a unit in every pack"


@pytest.mark.slow  # half a minute; that its gradients are right is shown above
def test_a_frozen_encoder_takes_no_backward_pass(gloo_pool: Any, folder_of: Callable[..., Path]) -> None:
    """Fails when blocks of a frozen encoder are gathered in the backward pass, when its features' gradients travel, or
    when ranks with and without units exchange different things.
    """
    folder = str(folder_of("qwen3_vl"))
    counts = {}
    for name, parts in {"all": Parts(), "language": Parts(freeze=("vision",)), "adapters": ADAPTERS}.items():
        answers = gloo_pool.run(train_parts, folder, parts, "gather", {}, ulysses=2, ring=2)
        seen = [counts for _, _, of_rank in answers for _, _, counts in of_rank]
        assert all(each == seen[0] for each in seen)
        assert {units > 0 for _, _, of_rank in answers for units, _, _ in of_rank} == {True, False}
        counts[name] = seen[0]
    encoder = 2  # blocks; and as many of the language model
    whole, language = counts["all"], counts["language"]
    gathers, scatters, features = "_allgather_base_", "_reduce_scatter_base_", "alltoall_base_"
    assert whole[gathers] - language[gathers] == encoder
    assert whole[scatters] - language[scatters] == encoder
    assert whole[features] - language[features] == 1
    assert counts["adapters"][gathers] == whole[gathers], "of the encoder and the language model, both with adapters"


def bytes_read_with_adapters(mesh: Mesh, folder: str) -> tuple[int, int, dict[str, Tensor], list[str]]:
    """Bytes read of weights, bytes that lie here, the adapters, and parameters that are not those of the folder."""
    from safetensors import safe_open

    with counting_weights() as taken:
        packed = load_on_a_rank(mesh, f"{folder}/model", parts=ADAPTERS)
    model: Any = packed.inner.get_base_model()
    names, wrong, adapters = base_names(model), [], {}
    with safe_open(f"{folder}/model/model.safetensors", framework="pt") as file:
        for name, parameter in model.named_parameters():
            whole = parameter.full_tensor()
            if name not in names:
                adapters[name] = whole
            elif not torch.equal(whole, file.get_tensor(names[name]).double()):
                wrong.append(name)
    here = sum(each.to_local().nbytes for each in packed.parameters())
    return sum(taken), here, adapters, wrong


def test_adapters_do_not_load_the_whole_model_on_a_rank(gloo_pool: Any, folder_of: Callable[..., Path]) -> None:
    """Fails when ``load_sharded`` does not know the weights of a model by the names that they have beside adapters, has
    each rank read all of them, or draws adapters that depend on the ranks.
    """
    folder = str(folder_of("qwen3_vl"))
    [(alone, _, adapters, _)] = gloo_pool.run(bytes_read_with_adapters, folder)
    answers = gloo_pool.run(bytes_read_with_adapters, folder, dp_shard=4)
    size = Path(folder, "model", "model.safetensors").stat().st_size
    assert alone == sum(read for read, _, _, _ in answers)
    assert 0.9 * size < alone <= size
    for read, here, same, wrong in answers:
        assert read < 0.3 * alone
        assert here < 0.3 * 2 * size + 10_000  # in float64, with adapters
        assert not wrong
        assert all(torch.equal(same[name], value) for name, value in adapters.items())
    first, second = (
        torch.cat([each.flatten() for name, each in adapters.items() if kind in name]) for kind in ("lora_A", "lora_B")
    )
    assert first.std() > 0
    assert not second.any()


def test_adapters_are_trained_in_compiled_blocks(folder_of: Callable[..., Path]) -> None:
    """Fails when blocks that are compiled leave adapters out, or give them other gradients."""
    folder, found = folder_of("qwen3_vl"), []
    pack = next(pack for pack in PackedDataset(folder / "dataset") if pack.units)
    for is_compiled in (False, True):

        def shard(model: nn.Module, is_compiled: bool = is_compiled) -> PackedModel:
            applied = ADAPTERS.apply(model)
            if is_compiled:
                compile_blocks(model, backend="aot_eager")
            return PackedModel(applied)

        packed = load_sharded(folder / "model", shard, dtype=torch.float64)
        trained = [(name, each) for name, each in named_parameters(packed.inner) if each.requires_grad]
        with torch.no_grad():
            for name, parameter in trained:
                parameter.copy_(sample(name, tuple(parameter.shape)))
        loss = packed(pack, ContextParallel())
        loss.backward()
        found.append((loss.detach(), torch.cat([each.grad.flatten() for _, each in trained if each.grad is not None])))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-12)


def test_what_load_sharded_cannot_draw_is_refused(folder_of: Callable[..., Path]) -> None:
    """Fails when adapters of another kind are trained from memory as it was found."""
    import peft

    for given in ({"use_dora": True}, {"init_lora_weights": "gaussian"}):

        def wrap(model: Any, given: dict[str, Any] = given) -> Any:
            config = peft.LoraConfig(target_modules=["q_proj"], **given)
            return peft.get_peft_model(model, config, low_cpu_mem_usage=True)

        with pytest.raises(ConfigError, match="that load_sharded cannot initialise"):
            load_sharded(folder_of("qwen3") / "model", wrap)


def test_parts_are_named_or_refused_in_one_line(
    folder_of: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when a misspelt part freezes nothing in silence, or a run without anything to train begins."""
    vision, text = (folder_of(family) / "model" for family in ("qwen3_vl", "qwen3"))
    for folder, parts, said in (
        (vision, Parts(freeze=("visual.merge",)), r"--freeze is visual.merge, which .* such as visual\.merger, "),
        (text, Parts(freeze=("vision",)), "--freeze is vision, and qwen3 is a model of text"),
        (vision, Parts(freeze=("vision", "language")), "--freeze vision --freeze language leaves nothing to train"),
        (vision, Parts(freeze=("vision",), rates=(("visual", 1.0),)), "--lr-part is visual, all of which is frozen"),
        (
            vision,
            Parts(lora=Lora(rank=1, alpha=1, targets=("norm",))),
            "--lora-targets is norm, which matches no linear",
        ),
        (vision, Parts(lora=Lora(rank=1, alpha=1, targets=("lm_head",))), "matches no linear layer but the output"),
    ):
        with pytest.raises(ConfigError, match=said) as raised:
            parts.apply(empty_model(folder))
        assert "\n" not in str(raised.value)
    model = empty_model(vision)
    every = {name for name, _ in named_parameters(model)}
    assert names_of(model, "vision", "") | names_of(model, "language", "") == every
    assert names_of(model, "*.1.mlp", "") == {name for name in every if ".1.mlp." in name}
    found = count_trains(Parts(freeze=("vision",)).apply(model))
    assert (found.encoder, found.blocks, found.head) == (False, True, True)
    assert found.trained + found.frozen == sum(each.numel() for each in model.parameters())
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match="--lora needs the package peft, which is not installed: pip install peft"):
        ADAPTERS.apply(empty_model(vision))
