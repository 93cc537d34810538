"""Models whose latents travel, and those whose do not, give what ``transformers`` gives for each document alone."""

from __future__ import annotations

import copy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import thread_ranks
import torch
from hand_made import pack_of, packed_for
from scripts import load_script
from thread_ranks import run_ranks
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers_alone import load_transformers

from preshard.schemas.model.families import FAMILIES
from preshard.schemas.model.languages import LANGUAGES
from preshard.trainer.attention.context_parallel import ContextParallel
from preshard.trainer.extra.saving import save_memory
from preshard.trainer.families.family import has_transformers
from preshard.trainer.models.interface import unwrap
from preshard.trainer.models.load import load_model
from preshard.trainer.models.packed import PackedModel

pytestmark = pytest.mark.skipif(not has_transformers(LANGUAGES["minicpm3"].since), reason="needs newer transformers")

LENGTHS, VOCABULARY = (12, 24, 12), 96
LATENT, EXPANDED = 10 + 4, 4 * (8 + 4 + 6)
"""Numbers of a token in ``followed.SMALL``: latent and shared part, and keys and values of four heads."""

TYPES = [name for name, model in LANGUAGES.items() if "kv_lora_rank" in model.left_out and model.alone]

Gradients = dict[str, Tensor]


@cache
def models() -> Any:
    return load_script(Path(__file__).parents[1] / "models" / "steps.py")


def load_both(folder: Path, lora: dict[str, Any] | None = None) -> tuple[Any, Any]:
    """A model of packs and that of ``transformers``, in float64 with the same random weights and adapters."""
    made: Any = load_model(folder, from_scratch=True, seed=3, dtype=torch.float64)
    own = copy.deepcopy(made.config)
    for part in (own, own.get_text_config()):
        part._experts_implementation = "eager"
    transformers = load_transformers()
    auto = transformers.AutoModelForCausalLM
    if made.config.model_type in FAMILIES:
        auto = transformers.AutoModelForImageTextToText
    plain = auto.from_config(own, attn_implementation="eager", dtype=torch.float64).train()
    if lora is not None:
        import peft

        options = peft.LoraConfig(r=2, target_modules=["kv_b_proj"], init_lora_weights=False, **lora)
        made, plain = (peft.get_peft_model(each, options) for each in (made, plain))
        made, plain = made.double(), plain.double()
    plain.load_state_dict(made.state_dict())
    return made, plain


def trains(model: Any) -> dict[str, nn.Parameter]:
    return {name: each for name, each in model.named_parameters() if each.requires_grad}


def alone(plain: Any) -> tuple[float, Gradients]:
    """Loss of the documents, one by one, and its gradients."""
    pack, total = pack_of(LENGTHS, VOCABULARY), torch.zeros((), dtype=torch.float64)
    for number in range(len(LENGTHS)):
        mine = torch.nonzero(pack.doc_ids == number)[:, 0]
        given: dict[str, Any] = {"input_ids": pack.tokens[mine][None], "use_cache": False}
        total = total + cross_entropy(plain(**given).logits[0][:-1], pack.labels[mine][:-1], reduction="sum")
    own = trains(plain)
    found = torch.autograd.grad(total, list(own.values()), allow_unused=True)
    return total.item(), {
        n: torch.zeros_like(p) if g is None else g for (n, p), g in zip(own.items(), found, strict=True)
    }


def on_ranks(model: Any, kind: str, ranks: int, **options: Any) -> tuple[float, Gradients]:
    """The same of the pack on several ranks, added over them."""
    packed = PackedModel(model)
    own = trains(packed)

    def on_rank(cp: ContextParallel) -> tuple[Tensor, tuple[Tensor | None, ...]]:
        batch = packed_for(unwrap(model), pack_of(LENGTHS, VOCABULARY, ring_degree=ranks, cp_rank=cp.cp_rank))
        loss = packed(batch, cp, attention=kind, **options)
        return loss.detach(), torch.autograd.grad(loss, list(own.values()), allow_unused=True)

    found = run_ranks(1, ranks, on_rank)
    sums = (sum(x for x in each if x is not None) for each in zip(*(grads for _, grads in found), strict=True))
    return sum(loss.item() for loss, _ in found), dict(zip(own, sums, strict=True))


def assert_same(found: tuple[float, Gradients], right: tuple[float, Gradients]) -> None:
    assert found[0] == pytest.approx(right[0], rel=1e-7)
    assert found[1].keys() == right[1].keys()
    for name, wanted in right[1].items():
        scale = float(wanted.abs().max()) + 1e-12
        torch.testing.assert_close(found[1][name] / scale, wanted / scale, rtol=0, atol=1e-5, msg=name)


@pytest.fixture
def widths(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of a token in each message of an all-to-all."""
    found: list[int] = []
    send = thread_ranks._all_to_all

    def noted(received: Tensor, sent: Tensor, *args: Any, **named: Any) -> Any:
        found.append(sent.shape[1])
        return send(received, sent, *args, **named)

    monkeypatch.setattr(thread_ranks, "_all_to_all", noted)
    return found


def write(tmp_path: Path, name: str, **settings: Any) -> Path:
    [folder] = models().write_models(tmp_path / name, [name], **settings).values()
    return Path(folder)


@pytest.mark.parametrize(
    ("kind", "ranks", "lora", "recompute"),
    [
        ("gather", 3, None, "none"),
        ("gather", 2, {}, "selective"),
        pytest.param("ring", 3, {"use_dora": True}, "full", marks=pytest.mark.slow),
        pytest.param("gather", 1, None, "none", marks=pytest.mark.slow),
    ],
)
def test_latents_travel(
    kind: str, ranks: int, lora: dict[str, Any] | None, recompute: str, tmp_path: Path, widths: list[int]
) -> None:
    """Fails when a model's keys and values are sent where its latents are less, or an adapter of the projection that
    expands them, or that projection, gets gradients of a rank's own tokens alone.
    """
    made, plain = load_both(write(tmp_path, "minicpm3"), lora)
    right = alone(plain)
    save_memory(unwrap(made), recompute=recompute)
    assert_same(on_ranks(made, kind, ranks), right)
    assert {*widths} == ({LATENT} if kind == "gather" and ranks > 1 else set())
    assert any("kv_b_proj" in name and bool(each.any()) for name, each in right[1].items())


@pytest.mark.slow
@pytest.mark.parametrize("name", [*TYPES, "mistral3, mistral4"])
def test_latents_of_every_type_travel(name: str, tmp_path: Path, widths: list[int]) -> None:
    """Fails when a type makes keys otherwise of its latents than the others, or is not found to have any."""
    made, plain = load_both(write(tmp_path, name))
    right = alone(plain)
    sizes = made.config.get_text_config()
    for kind, ranks in (("gather", 1), ("gather", 2), ("gather", 3), ("ring", 2), ("ring", 3)):
        widths.clear()
        assert_same(on_ranks(made, kind, ranks), right)
        wanted = {sizes.kv_lora_rank + sizes.qk_rope_head_dim} if kind == "gather" and ranks > 1 else set()
        assert {*widths} == wanted, (kind, ranks)


class Shifted(nn.Linear):
    """A projection with a bias, which no released model has."""

    @classmethod
    def of(cls, plain: nn.Linear) -> Shifted:
        made = cls(plain.in_features, plain.out_features, dtype=plain.weight.dtype)
        made.weight = plain.weight
        return made


@pytest.mark.slow
def test_a_projection_with_a_bias_expands_before(tmp_path: Path, widths: list[int]) -> None:
    """Fails when a projection that is more than a matrix is taken for one."""
    made, plain = load_both(write(tmp_path, "minicpm3"))
    for model in (made, plain):
        for layer in model.model.layers:
            layer.self_attn.kv_b_proj = Shifted.of(layer.self_attn.kv_b_proj)
    plain.load_state_dict(made.state_dict())
    assert_same(on_ranks(made, "gather", 2), alone(plain))
    assert {*widths} == {EXPANDED}


ADAPTERS: list[tuple[str, dict[str, Any], bool]] = [
    ("LoraConfig", {}, True),
    ("LoraConfig", {"lora_dropout": 0.1}, False),
    ("LoraConfig", {"lora_bias": True}, False),
    ("IA3Config", {"feedforward_modules": []}, False),
]


def test_adapters_that_are_a_matrix_are_told_from_others(tmp_path: Path) -> None:
    """Fails when latents travel beside an adapter that draws noise for each token, adds a bias, or was not compared."""
    import peft

    plain: Any = load_model(write(tmp_path, "minicpm3"), from_scratch=True)
    latents, shared = torch.ones(1, 1, 6, 10), torch.ones(1, 1, 6, 4)
    for kind, options, travels in ADAPTERS:
        made = copy.deepcopy(plain)
        peft.inject_adapter_in_model(getattr(peft, kind)(target_modules=["kv_b_proj"], **options), made)
        attention = made.model.layers[0].self_attn
        first, second = attention.expand_kv(latents, shared)
        assert (first is latents, second is shared, attention.latents_up(latents) is not None) == (travels,) * 3
        if not travels:
            assert (first.shape, second.shape) == ((1, 4, 6, 12), (1, 4, 6, 6))
        made.eval()
        drawn = "lora_dropout" in options
        assert (attention.latents_up(latents) is not None) == (travels or drawn), "nothing is drawn outside of training"


def test_a_copy_and_other_attention_expand_their_own(tmp_path: Path) -> None:
    """Fails when a copied model expands by the weights of the first, or ``transformers`` gets latents as keys."""
    made, plain = load_both(write(tmp_path, "minicpm3"))
    copied = copy.deepcopy(made)
    with torch.no_grad():
        for each in made.parameters():
            each.zero_()
    assert_same(on_ranks(copied, "gather", 2), alone(plain))
    copied.set_attn_implementation("sdpa")
    tokens = pack_of(LENGTHS, VOCABULARY).tokens[None, :12]
    with torch.no_grad():
        ours, theirs = (model(input_ids=tokens, use_cache=False).logits for model in (copied, plain))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
def test_latents_travel_in_the_dtype_of_autocast(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fails when the projection's matrix and latents differ in dtype, or messages are in float32."""
    made, plain = load_both(write(tmp_path, "minicpm3"))
    right, dtypes, send = alone(plain), [], thread_ranks._all_to_all

    def noted(received: Tensor, sent: Tensor, *args: Any, **named: Any) -> Any:
        dtypes.append(sent.dtype)
        return send(received, sent, *args, **named)

    monkeypatch.setattr(thread_ranks, "_all_to_all", noted)
    made = made.float()
    packed = PackedModel(made)

    def on_rank(cp: ContextParallel) -> tuple[float, Tensor]:
        batch = pack_of(LENGTHS, VOCABULARY, ring_degree=2, cp_rank=cp.cp_rank)
        with torch.autocast("cpu", torch.bfloat16):
            loss = packed(batch, cp)
        [grad] = torch.autograd.grad(loss, [made.model.layers[0].self_attn.kv_b_proj.weight])
        return loss.item(), grad

    found = run_ranks(1, 2, on_rank)
    assert sum(loss for loss, _ in found) == pytest.approx(right[0], rel=1e-2)
    wanted = right[1]["model.layers.0.self_attn.kv_b_proj.weight"]
    assert float((sum(grad for _, grad in found) - wanted).norm() / wanted.norm()) < 0.05
    assert {*dtypes} == {torch.bfloat16, torch.float32}, "latents, and gradients of them"
